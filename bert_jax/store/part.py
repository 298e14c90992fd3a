"""The parts of a split of a token store. What one `SplitWriter` writes is a part."""

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.store.checked_files import (
    open_index,
    open_vector,
    read_checksums,
    sparse_copy,
    write_checksums,
)

# Lists the parts of a split that has several.
PARTS = "parts.json"
WORD_STARTS = "word_starts.bin"
TOKEN_COUNTS = "token_counts.npy"
# The first is opened first and written last.
INDEX = (TOKEN_COUNTS, "sentence_starts.npy", "document_starts.npy", "shard_starts.npy")


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the dtype of ids on disk: two bytes if they suffice."""
    return np.dtype("<u2") if vocab_size <= 65536 else np.dtype("<i4")


def shard_name(index: int) -> str:
    return f"tokens-{index:05d}.bin"


def counts_name(source: str) -> str:
    """Returns the name of the file with the token counts of a source of a split."""
    return f"token_counts_{source}.npy" if source else TOKEN_COUNTS


class Part:
    """A run of documents, memory-mapped. All positions count from its beginning.

    A part in object storage is copied to the disk: its index when it is opened, and its tokens when
    they are first read, or earlier by `fetch`. The copy is deleted when the part is closed.

    Attributes:
      num_documents, num_sentences, num_tokens: Its size.
      document_starts: int64 [D+1], sentence at which each document begins.
      sentence_starts: int64 [S+1], token at which each sentence begins.
      token_counts: int64 [V], occurrences of each token.
    """

    def __init__(self, directory: Path | epath.Path):
        self.directory = directory
        with sparse_copy(directory, INDEX) as local:
            checksums = read_checksums(directory)
            self.token_counts, self.sentence_starts, self.document_starts, self._shard_starts = (
                open_index(directory, local, name, checksums) for name in INDEX
            )
            self.num_documents = len(self.document_starts) - 1
            self.num_sentences = len(self.sentence_starts) - 1
            self.num_tokens = int(self._shard_starts[-1])
            dtype, self._shards = token_dtype(len(self.token_counts)), []
            for number, length in enumerate(np.diff(self._shard_starts).tolist()):
                name = shard_name(number)
                self._shards.append(open_vector(directory / name, local / name, dtype, length))
            self.has_words = (local / WORD_STARTS).exists()
            if self.has_words:
                path, size = directory / WORD_STARTS, -(-self.num_tokens // 8)
                self._word_bits = open_vector(path, local / WORD_STARTS, np.dtype("u1"), size)

    def tokens_at(self, positions: np.ndarray) -> np.ndarray:
        """Gathers tokens; see `TokenStore.tokens_at`."""

        def read(shard: int, inside: np.ndarray) -> np.ndarray:
            return self._shards[shard][inside].astype(np.int32)

        return gather(self._shard_starts, positions, np.int32, read)

    def word_starts_at(self, positions: np.ndarray) -> np.ndarray:
        """Returns whether the tokens at these positions begin a word, bool of the same shape."""
        return (self._word_bits[positions // 8] >> (7 - positions % 8) & 1).astype(bool)

    def fetch(self, first: int, stop: int) -> None:
        """Copies the tokens from `first` to `stop` from object storage, before they are read.

        The part must be in object storage.
        """
        for shard, (start, end) in zip(
            self._shards, itertools.pairwise(self._shard_starts), strict=True
        ):
            if first < end and start < stop:
                shard.fetch(max(first, start) - start, min(stop, end) - start)
        if self.has_words:
            self._word_bits.fetch(first // 8, -(-stop // 8))


def gather(
    starts: np.ndarray,
    positions: np.ndarray,
    dtype: type,
    read: Callable[[int, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Reads values at positions that count over several pieces.

    Args:
      starts: int64 [N+1], the position at which each piece begins, and the end.
      positions: int64, any shape; each in [0, starts[-1]).
      read: Takes the number of a piece and positions within it; returns the values there.
    """
    if len(starts) == 2:
        return read(0, positions)
    piece = np.searchsorted(starts, positions, side="right") - 1
    values = np.empty(positions.shape, dtype)
    for number in np.flatnonzero(np.bincount(piece.ravel())).tolist():
        inside = piece == number
        values[inside] = read(number, positions[inside] - starts[number])
    return values


def write_parts(
    directory: Path | epath.Path,
    counts: Mapping[str, Mapping[str, int]],
    sources: Sequence[str] = (),
    *,
    has_words: bool,
) -> None:
    """Makes finished parts a split: writes their list and the sum of their token counts.

    Args:
      counts: The `SplitWriter.counts` of each part by its name, in the order of the text.
    """

    def token_counts(name: str) -> np.ndarray:
        with files.open_input(directory / name / TOKEN_COUNTS) as file:
            return np.load(io.BytesIO(file.read()), allow_pickle=False)

    keys = ("documents", "sentences", "tokens")
    parts = [{"name": name} | {key: size[key] for key in keys} for name, size in counts.items()]
    if any(sources):
        parts = [part | {"source": name} for part, name in zip(parts, sources, strict=True)]
    with ThreadPoolExecutor() as threads, files.local_output(directory) as local:
        sums: dict[str, Any] = {TOKEN_COUNTS: 0}
        for source, counts_V in zip(
            sources or [""] * len(counts), threads.map(token_counts, counts), strict=True
        ):
            for name in {TOKEN_COUNTS, counts_name(source)}:
                sums[name] = sums.get(name, 0) + counts_V
        for name, counts_V in sums.items():
            np.save(local / name, counts_V)
        write_checksums(local, sums)
        files.write_json(local / PARTS, {"parts": parts, "has_words": has_words})
