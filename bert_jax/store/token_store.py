"""The token store: a tokenized corpus on disk, read through memory maps.

    DIR/metadata.json     written last: its presence means the store is complete; it has a checksum
                          of itself and of each file of the store that is in none of its parts
    DIR/tokenizer/        the tokenizer, self-contained
    DIR/train/            one split; DIR/heldout/ is another, if documents are held out
        tokens-00000.bin ...   token ids, raw little-endian (see `token_dtype`)
        sentence_starts.npy    int64 [S+1]: token at which each sentence begins, and the end
        document_starts.npy    int64 [D+1]: sentence at which each document begins, and the end
        shard_starts.npy       int64 [shards+1]: token at which each .bin begins, and the end
        token_counts.npy       int64 [V]: how often each token occurs
        word_starts.bin        one bit per token: whether it begins a word; only with
                               data.word_boundaries=spaces
        checksums.json         the CRC-32 of each of the files above; written last

A split of several parts (format version 2) has instead

        parts.json             the name and size of each part, in the order of the text; written
                               last
        00000/ ...             the parts; each has all the files above
        token_counts.npy       their sum
        token_counts_NAME.npy  the sum over the parts of each source, if data.sources names them
        checksums.json         of these counts

Neither writing nor reading holds more than a small part of the corpus in memory. A store in object
storage is written in TMPDIR and uploaded from there. What is read of it is copied there, piece by
piece.
"""

import copy
import functools
import json
import os
import resource
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.store.checked_files import (
    CHECKSUMS,
    check,
    checksum,
    damaged,
    open_index,
    read_checksums,
    verify,
)
from bert_jax.store.part import PARTS, TOKEN_COUNTS, Part, counts_name, gather

# The version of a store whose splits have one part each, and of one with several.
FORMAT_VERSION, PARTS_VERSION = 1, 2
# The metadata, and their key with the checksums.
_OWN, _CHECKSUMS = "metadata.json", "checksums"
SPLITS = ("train", "heldout")
# Each open part holds about six file descriptors, of which a process often has 1024. A window of
# rows has 16 parts or so, and two windows and an evaluation are read at a time.
_OPEN_PARTS, _PART_FILES, _OTHER_FILES = 48, 6, 256


def store_path(directory: str | os.PathLike) -> Path | epath.Path:
    """Returns the directory of a store or split; raises UserError if it is unusable."""
    return files.checked_path(directory, "the token store")


class PartStarts(NamedTuple):
    """Where each of P parts begins in its split, and the end of the last; int64 [P+1] each."""

    documents: np.ndarray
    sentences: np.ndarray
    tokens: np.ndarray


class TokenStore:
    """One split of a token store, memory-mapped.

    If the split has several parts, each is opened when it is first read, and the parts that have
    not been read for the longest time are closed.

    Attributes:
      num_parts, num_documents, num_sentences, num_tokens: The size of the split.
      starts: Where each part begins; see `PartStarts`.
      sources: The name of the source of each part; see `data.sources`. Empty names for a store
        without sources.
      token_counts: int64 [V], occurrences of each token in this split.
      has_words: Whether the split has a bit for each token that begins a word; see
        `word_starts_at`.
    """

    def __init__(self, directory: str | os.PathLike):
        self.directory = store_path(directory)
        try:
            parts = files.read_json(self.directory / PARTS)
        except FileNotFoundError:
            only = Part(self.directory)
            self.token_counts, self.has_words = only.token_counts, only.has_words
            sizes, self.sources = [(only.num_documents, only.num_sentences, only.num_tokens)], [""]
            self._open = lambda number: only
        else:
            with files.local_copy(self.directory, (TOKEN_COUNTS,)) as local:
                checksums = read_checksums(self.directory)
                self.token_counts = open_index(self.directory, local, TOKEN_COUNTS, checksums)
            self.has_words = parts["has_words"]
            sizes = [(p["documents"], p["sentences"], p["tokens"]) for p in parts["parts"]]
            directories = [self.directory / part["name"] for part in parts["parts"]]
            self.sources = [part.get("source", "") for part in parts["parts"]]
            # A window has rows of each source.
            num_open = max(_OPEN_PARTS, 3 * len(set(self.sources)))
            if num_open > _OPEN_PARTS:
                # The held-out split may have as many open parts as this one.
                _allow_open_files(2 * _PART_FILES * num_open)
            self._open = functools.lru_cache(num_open)(lambda number: Part(directories[number]))
        self._set_sizes(sizes)

    def _set_sizes(self, sizes: Sequence[tuple[int, int, int]]) -> None:
        starts_3xP = np.cumsum([(0, 0, 0), *sizes], axis=0, dtype=np.int64).T
        self.starts = PartStarts(*map(np.ascontiguousarray, starts_3xP))
        self.num_parts = len(sizes)
        self.num_documents, self.num_sentences, self.num_tokens = starts_3xP[:, -1].tolist()

    def by_source(self) -> dict[str, "TokenStore"]:
        """Returns the parts of each source as a split of their own, by name."""
        names = list(dict.fromkeys(self.sources))
        if len(names) == 1:
            return {names[0]: self}
        sizes_Px3, found = np.diff(np.stack(self.starts), axis=1).T, {}
        with files.local_copy(self.directory, tuple(map(counts_name, names))) as local:
            checksums = read_checksums(self.directory)
            for name in names:
                numbers = [number for number, source in enumerate(self.sources) if source == name]
                found[name] = view = copy.copy(self)
                view.sources = [name] * len(numbers)
                view._open = lambda number, numbers=numbers: self.part(numbers[number])
                view._set_sizes(sizes_Px3[numbers].tolist())
                view.token_counts = open_index(self.directory, local, counts_name(name), checksums)
        return found

    def part(self, number: int) -> Part:
        return self._open(number)

    def tokens_at(self, positions: np.ndarray) -> np.ndarray:
        """Gathers tokens.

        Args:
          positions: int64, any shape; each in [0, num_tokens).

        Returns:
          int32 of the same shape: the ids at these positions.
        """

        def read(number: int, inside: np.ndarray) -> np.ndarray:
            return self.part(number).tokens_at(inside)

        return gather(self.starts.tokens, positions, np.int32, read)

    def word_starts_at(self, positions: np.ndarray) -> np.ndarray:
        """Returns whether the tokens at these positions begin a word, bool of the same shape."""

        def read(number: int, inside: np.ndarray) -> np.ndarray:
            return self.part(number).word_starts_at(inside)

        return gather(self.starts.tokens, positions, bool, read)

    def sentence_starts_at(self, positions: np.ndarray) -> np.ndarray:
        """Returns whether these tokens begin a sentence, bool of the shape of the positions."""

        def read(number: int, inside: np.ndarray) -> np.ndarray:
            starts = self.part(number).sentence_starts
            return starts[np.searchsorted(starts, inside)] == inside

        return gather(self.starts.tokens, positions, bool, read)

    def fetch(self, spans: Iterable[tuple[int, int]]) -> None:
        """Copies tokens from object storage before they are read, several spans at a time.

        Args:
          spans: The first position of each span and the one after its last. A span lies in one
            part.
        """

        def fetch(span: tuple[int, int]) -> None:
            number = int(np.searchsorted(self.starts.tokens, span[0], side="right")) - 1
            start = int(self.starts.tokens[number])
            self.part(number).fetch(span[0] - start, span[1] - start)

        if files.is_remote(self.directory):
            with ThreadPoolExecutor() as threads:
                list(threads.map(fetch, spans))


def _allow_open_files(number: int) -> None:
    """Raises the limit of this process on open files, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Other files need some too.
    number += _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        number = min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


def verify_store(directory: str | os.PathLike) -> int:
    """Compares the files of the splits of a finished store with their checksums."""
    found = 0
    for name in read_metadata(directory)["splits"]:
        split = store_path(directory) / name
        parts = []
        if (split / PARTS).exists():
            parts = [split / part["name"] for part in files.read_json(split / PARTS)["parts"]]
        found += sum(map(verify, (split, *parts)))
    return found


def write_metadata(directory: Path | epath.Path, metadata: dict[str, Any]) -> None:
    """Marks a store as complete: writes `metadata.json` after all other files are on disk.

    The files of parts, which may be many, are on disk already.
    """
    if not files.is_remote(directory):
        for pattern in ("*", "tokenizer/*", *(f"{split}/*" for split in SPLITS)):
            for path in filter(Path.is_file, directory.glob(pattern)):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
    metadata = {"format_version": FORMAT_VERSION, **metadata}
    tokenizer = sorted(f"tokenizer/{path.name}" for path in (directory / "tokenizer").glob("*"))
    of_splits = (f"{split}/{name}" for split in metadata["splits"] for name in (CHECKSUMS, PARTS))
    covered = [name for name in (*tokenizer, *of_splits) if (directory / name).exists()]
    found = {name: checksum(directory / name) for name in covered}
    found[_OWN] = _own_checksum(metadata)
    text = json.dumps(metadata | {_CHECKSUMS: found}, indent=2, ensure_ascii=False)
    files.write_whole(directory / _OWN, text.encode() + b"\n")


def _own_checksum(metadata: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(metadata, sort_keys=True).encode())


def read_metadata(directory: str | os.PathLike) -> dict[str, Any]:
    """Returns the contents of a finished store's `metadata.json`, without its checksums.

    The files that they cover are compared with them; a store of an older version has none.
    """
    path = store_path(directory) / _OWN
    try:
        metadata = files.read_json(path)
    except FileNotFoundError:
        raise UserError(
            f"{directory} holds no finished token store (metadata.json is missing): "
            "run `python -m bert_jax.prepare` first"
        ) from None
    if (version := metadata.get("format_version")) not in (FORMAT_VERSION, PARTS_VERSION):
        raise UserError(
            f"{path} has format version {version}, but this program reads versions "
            f"{FORMAT_VERSION} and {PARTS_VERSION}: prepare the corpus again"
        )
    if checksums := metadata.pop(_CHECKSUMS, {}):
        if checksums.pop(_OWN, None) != _own_checksum(metadata):
            raise damaged(path)
        for name, expected in checksums.items():
            check(path.parent / name, path.parent / name, expected)
    return metadata
