"""The token store: a tokenized corpus on disk, read through memory maps.

    DIR/metadata.json     written last: its presence means the store is complete
    DIR/tokenizer/        the tokenizer, self-contained
    DIR/train/            one split; DIR/heldout/ is another, if documents are held out
        tokens-00000.bin ...   token ids, raw little-endian (see `token_dtype`)
        sentence_starts.npy    int64 [S+1]: token at which each sentence begins, and the end
        document_starts.npy    int64 [D+1]: sentence at which each document begins, and the end
        shard_starts.npy       int64 [shards+1]: token at which each .bin begins, and the end
        token_counts.npy       int64 [V]: how often each token occurs
        word_starts.bin        one bit per token: whether it begins a word; only with
                               data.word_boundaries=spaces
        checksums.npz          of the files above; written last

Neither writing nor reading holds more than a small part of the corpus in memory. A store in object
storage is copied to TMPDIR when it is opened, and uploaded from there after it is written.
"""

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError, with_filename
from bert_jax.store.checked_files import CheckedVector, open_index, read_checksums, write_checksums

FORMAT_VERSION = 1
# A shard is closed at the first end of a document after this many tokens, to keep single files
# small enough for copies and object stores.
SHARD_TOKENS = 2**26
WORD_STARTS = "word_starts.bin"
# The first is opened first and written last.
INDEX = ("token_counts.npy", "sentence_starts.npy", "document_starts.npy", "shard_starts.npy")
# Tokens are counted in batches of this size: a bincount over the vocabulary for each document
# would cost more than writing it.
_COUNT_TOKENS = 2**18


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the dtype of ids on disk: two bytes if they suffice."""
    return np.dtype("<u2") if vocab_size <= 65536 else np.dtype("<i4")


def shard_name(index: int) -> str:
    return f"tokens-{index:05d}.bin"


def store_path(directory: str | os.PathLike) -> Path | epath.Path:
    """Returns the directory of a store or split; raises UserError if it is unusable."""
    return files.checked_path(directory, "the token store")


class TokenStore:
    """One split of a token store, memory-mapped.

    Attributes:
      directory: The directory of the split.
      num_documents, num_sentences, num_tokens: The size of the split.
      document_starts: int64 [D+1], sentence at which each document begins.
      sentence_starts: int64 [S+1], token at which each sentence begins.
      token_counts: int64 [V], occurrences of each token in this split.
      has_words: Whether the split has a bit for each token that begins a word; see
        `word_starts_at`.

    Raises:
      UserError: Files are missing, or their sizes do not add up.
    """

    def __init__(self, directory: str | os.PathLike):
        self.directory = store_path(directory)
        with files.local_copy(self.directory) as local:
            checksums = read_checksums(self.directory, local)
            self.token_counts, self.sentence_starts, self.document_starts, self._shard_starts = (
                open_index(self.directory, local, name, checksums) for name in INDEX
            )
            self.num_documents = len(self.document_starts) - 1
            self.num_sentences = len(self.sentence_starts) - 1
            self.num_tokens = int(self._shard_starts[-1])
            ends = int(self.document_starts[-1]), int(self.sentence_starts[-1])
            if ends != (self.num_sentences, self.num_tokens):
                raise UserError(
                    f"the index files in {self.directory} do not agree with each other: "
                    "prepare the corpus again in an empty directory"
                )
            dtype = token_dtype(len(self.token_counts))
            self._shards = [
                CheckedVector(
                    *(local / shard_name(i), dtype, n, self.directory / shard_name(i), checksums)
                )
                for i, n in enumerate(np.diff(self._shard_starts).tolist())
            ]
            self.has_words = (local / WORD_STARTS).exists()
            if self.has_words:
                length, path = -(-self.num_tokens // 8), self.directory / WORD_STARTS
                self._word_bits = CheckedVector(
                    *(local / WORD_STARTS, np.dtype("u1"), length, path, checksums)
                )

    def tokens_at(self, positions: np.ndarray) -> np.ndarray:
        """Gathers tokens.

        Args:
          positions: int64, any shape; each in [0, num_tokens).

        Returns:
          int32 of the same shape: the ids at these positions.

        Raises:
          UserError: The file is damaged, or an id is outside the vocabulary.
        """
        if len(self._shards) == 1:
            tokens = self._shards[0][positions].astype(np.int32)
        else:
            tokens = np.empty(np.shape(positions), np.int32)
            shard_of = np.searchsorted(self._shard_starts, positions, side="right") - 1
            for index in np.unique(shard_of):
                inside = shard_of == index
                tokens[inside] = self._shards[index][positions[inside] - self._shard_starts[index]]
        # Negative ids are large as unsigned ones.
        if tokens.size and tokens.view(np.uint32).max() >= len(self.token_counts):
            raise UserError(
                f"{self.directory} is damaged: it has ids outside its vocabulary of "
                f"{len(self.token_counts):,} entries; prepare the corpus again"
            )
        return tokens

    def word_starts_at(self, positions: np.ndarray) -> np.ndarray:
        """Returns whether the tokens at these positions begin a word, bool of the same shape."""
        return (self._word_bits[positions // 8] >> (7 - positions % 8) & 1).astype(bool)


class WordStarts:
    """A view of a split whose tokens are 1 where a word begins and 0 elsewhere."""

    def __init__(self, store: TokenStore):
        self._store = store

    def tokens_at(self, positions: np.ndarray) -> np.ndarray:
        return self._store.word_starts_at(positions).astype(np.int32)


class SplitWriter:
    """Writes one split, document by document, in bounded memory.

    Use it as a context manager. If the block ends with an exception, the split stays visibly
    incomplete.

    Args:
      directory: A local directory, created if needed, that holds no split yet.
      vocab_size: The size of the vocabulary; all ids are smaller.
      shard_tokens: See `SHARD_TOKENS`.

    Attributes:
      counts: The numbers of `documents`, `sentences` and `tokens`, and `bytes_of_text`.
    """

    def __init__(
        self, directory: str | os.PathLike, vocab_size: int, *, shard_tokens: int = SHARD_TOKENS
    ):
        self._directory = directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.counts = {"documents": 0, "sentences": 0, "tokens": 0, "bytes_of_text": 0}
        self._shard_tokens = shard_tokens
        self._dtype = token_dtype(vocab_size)
        self._token_counts = np.zeros(vocab_size, np.int64)
        self._uncounted: list[np.ndarray] = []
        self._num_uncounted = 0
        self._shard: BinaryIO | None = None
        self._word_bits: BinaryIO | None = None
        self._unwritten_bits = np.zeros(0, bool)
        self._shard_starts: list[int] = []
        self._sentence_starts = _VectorFile(directory / "sentence_starts.npy")
        self._document_starts = _VectorFile(directory / "document_starts.npy")

    def append(
        self,
        tokens: np.ndarray,
        sentence_lengths: np.ndarray,
        num_bytes: int = 0,
        begins_word: np.ndarray | None = None,
    ) -> None:
        """Adds a document.

        Args:
          tokens: The ids of all its sentences.
          sentence_lengths: int64, at least one entry; no entry is 0.
          num_bytes: The size of its text.
          begins_word: bool, whether each token begins a word; given for all documents or none.
        """
        counts = self.counts
        starts = counts["tokens"] + np.cumsum(sentence_lengths) - sentence_lengths
        with with_filename(self._directory):
            self._document_starts.append([counts["sentences"]])
            self._sentence_starts.append(starts)
            if not self._shard or counts["tokens"] - self._shard_starts[-1] >= self._shard_tokens:
                self._open_shard()
            self._shard.write(tokens.astype(self._dtype, copy=False).tobytes())
            if begins_word is not None:
                self._word_bits = self._word_bits or open(self._directory / WORD_STARTS, "wb")  # noqa: SIM115
                bits = np.append(self._unwritten_bits, begins_word)
                whole = len(bits) // 8 * 8
                self._word_bits.write(np.packbits(bits[:whole]).tobytes())
                self._unwritten_bits = bits[whole:]
        self._uncounted.append(tokens)
        self._num_uncounted += len(tokens)
        if self._num_uncounted >= _COUNT_TOKENS:
            self._add_up_counts()
        counts["documents"] += 1
        counts["sentences"] += len(sentence_lengths)
        counts["tokens"] += len(tokens)
        counts["bytes_of_text"] += num_bytes

    def __enter__(self) -> "SplitWriter":
        return self

    def __exit__(self, exception_type, *_) -> None:
        with with_filename(self._directory):
            if self._shard:
                self._shard.close()
            if self._word_bits:
                self._word_bits.write(np.packbits(self._unwritten_bits).tobytes())
                self._word_bits.close()
            self._document_starts.append([self.counts["sentences"]])
            self._sentence_starts.append([self.counts["tokens"]])
            self._document_starts.close()
            self._sentence_starts.close()
            if exception_type is None:
                self._add_up_counts()
                shard_starts = np.array([*self._shard_starts, self.counts["tokens"]])
                np.save(self._directory / "shard_starts.npy", shard_starts)
                np.save(self._directory / "token_counts.npy", self._token_counts)
                shards = map(shard_name, range(len(self._shard_starts)))
                item_bytes = dict.fromkeys(INDEX, 1) | dict.fromkeys(shards, self._dtype.itemsize)
                if self._word_bits:
                    item_bytes[WORD_STARTS] = 1
                write_checksums(self._directory, item_bytes)

    def _open_shard(self) -> None:
        if self._shard:
            self._shard.close()
        self._shard = open(self._directory / shard_name(len(self._shard_starts)), "wb")  # noqa: SIM115
        self._shard_starts.append(self.counts["tokens"])

    def _add_up_counts(self) -> None:
        if self._uncounted:
            tokens = np.concatenate(self._uncounted)
            self._token_counts += np.bincount(tokens, minlength=len(self._token_counts))
        self._uncounted, self._num_uncounted = [], 0


class _VectorFile:
    """Writes an int64 vector of unknown length to an .npy file.

    numpy pads the header to leave room for the length. The header is written again, at the same
    size, once the length is known.
    """

    def __init__(self, path: Path):
        self._file = open(path, "wb")  # noqa: SIM115
        self._length = 0
        self._write_header()

    def append(self, values: Any) -> None:
        self._file.write(np.asarray(values, "<i8").tobytes())
        self._length += len(values)

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        header = {"descr": "<i8", "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def write_metadata(directory: Path, metadata: dict[str, Any]) -> None:
    """Marks a store as complete: writes `metadata.json` after all other files are on disk."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    text = json.dumps({"format_version": FORMAT_VERSION, **metadata}, indent=2, ensure_ascii=False)
    files.write_whole(directory / "metadata.json", text.encode() + b"\n")


# The keys of metadata.json, with examples of their values.
METADATA = {
    "options": {"input": [""], "vocab_path": "", "vocab": "", "format": "", "tokenizer": ""},
    "sources": [{}],
    "splits?": {},
    "dropped_documents": {},
    "first_dropped": {},
    "vocab_size": 0,
}


def read_metadata(directory: str | os.PathLike) -> dict[str, Any]:
    """Returns the contents of a finished store's `metadata.json`.

    Raises:
      UserError: The store is not finished, damaged, or of another version.
    """
    path = store_path(directory) / "metadata.json"
    try:
        metadata = files.read_json(path)
    except FileNotFoundError:
        raise UserError(
            f"{directory} holds no finished token store (metadata.json is missing): "
            "run `python -m bert_jax.prepare` first"
        ) from None
    if (version := metadata.get("format_version")) not in (FORMAT_VERSION, 2):
        raise UserError(
            f"{path} has format version {version}, but this program reads version "
            f"{FORMAT_VERSION}: prepare the corpus again"
        )
    # Other versions have other keys.
    return files.read_json(path, METADATA)
