"""Writes a split of a token store or a part of one, whose format is in `token_store`."""

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bert_jax.base.errors import with_filename
from bert_jax.store.checked_files import write_checksums
from bert_jax.store.part import WORD_STARTS, shard_name, token_dtype

# A shard is closed at the first end of a document after this many tokens, to keep single files
# small enough for copies and object stores.
SHARD_TOKENS = 2**26
# Tokens are counted in batches of this size: a bincount over the vocabulary for each document
# would cost more than writing it.
_COUNT_TOKENS = 2**18


class SplitWriter:
    """Writes one split, document by document, in bounded memory.

    Use it as a context manager. If the block ends with an exception, the split lacks files and
    cannot be opened.

    Args:
      directory: A local directory, created if needed, that holds no split yet.
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
          sentence_lengths: int64, at least one; none is 0.
          begins_word: bool, whether each token begins a word; given for all documents or none.
        """
        counts = self.counts
        starts = counts["tokens"] + np.cumsum(sentence_lengths) - sentence_lengths
        with with_filename(self._directory):
            self._document_starts.append([counts["sentences"]])
            self._sentence_starts.append(starts)
            if not self._shard or counts["tokens"] - self._shard_starts[-1] >= self._shard_tokens:
                if self._shard:
                    self._shard.close()
                path = self._directory / shard_name(len(self._shard_starts))
                self._shard = open(path, "wb")  # noqa: SIM115
                self._shard_starts.append(counts["tokens"])
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
                write_checksums(self._directory, os.listdir(self._directory))

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
