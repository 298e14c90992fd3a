"""The token store: a tokenized corpus on disk, read through memory maps.

    DIR/metadata.json     written last: its presence means the store is complete
    DIR/tokenizer/        the tokenizer, self-contained
    DIR/train/            one split; DIR/heldout/ another, where documents are held out
        tokens-00000.bin ...   token ids, raw little-endian (see `token_dtype`)
        sentence_starts.npy    int64 [S+1]: token at which each sentence begins, and the end
        document_starts.npy    int64 [D+1]: sentence at which each document begins, and the end
        shard_starts.npy       int64 [shards+1]: token at which each .bin begins, and the end
        token_counts.npy       int64 [V]: how often each token occurs; written last

Neither writing nor reading holds more than a small part of the corpus in memory. A store in object
storage is copied to TMPDIR when it is opened, and uploaded from there after it is written.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.errors import UserError, naming

FORMAT_VERSION = 1
# A shard is closed at the first end of a document after this many tokens: single files stay
# small enough for copies and object stores.
SHARD_TOKENS = 2**26
# Tokens are counted in batches of this size: a bincount over the vocabulary for each document
# would cost more than writing it.
_COUNT_TOKENS = 2**18

# The file that is written last is checked first.
_INDEX_FILES = ("token_counts", "sentence_starts", "document_starts", "shard_starts")

# Keys of a split's counts, and of a TFDS source, in metadata.json.
_COUNTS = {"documents", "sentences", "tokens", "bytes_of_text"}
_TFDS = {"tfds", "field", "version"}


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the dtype of ids on disk: two bytes if they suffice."""
    return np.dtype("<u2") if vocab_size <= 65536 else np.dtype("<i4")


def shard_name(index: int) -> str:
    return f"tokens-{index:05d}.bin"


def store_path(directory: str | os.PathLike) -> Path | epath.Path:
    """Returns the directory of a store or split; raises UserError if it is unusable."""
    return files.open_path(directory, "the token store")


class TokenStore:
    """One split of a token store, memory-mapped.

    Attributes:
      directory: The directory of the split.
      num_documents, num_sentences, num_tokens: Its size.
      document_starts: int64 [D+1], sentence at which each document begins.
      sentence_starts: int64 [S+1], token at which each sentence begins.
      token_counts: int64 [V], occurrences of each token in this split.

    Raises:
      UserError: Files are missing, or their sizes do not add up.
    """

    def __init__(self, directory: str | os.PathLike):
        self.directory = store_path(directory)
        with files.local_copy(self.directory) as local:
            self.token_counts, self.sentence_starts, self.document_starts, self._shard_starts = (
                self._open_index(local, f"{name}.npy") for name in _INDEX_FILES
            )
            self.num_documents = len(self.document_starts) - 1
            self.num_sentences = len(self.sentence_starts) - 1
            self.num_tokens = int(self._shard_starts[-1])
            self._check_sizes()
            dtype = token_dtype(len(self.token_counts))
            self._shards = [
                open_vector(local / shard_name(i), dtype, n, self.directory / shard_name(i))
                for i, n in enumerate(np.diff(self._shard_starts).tolist())
            ]

    def tokens_at(self, positions: np.ndarray) -> np.ndarray:
        """Gathers tokens.

        Args:
          positions: int64, any shape; each in [0, num_tokens).

        Returns:
          int32 of the same shape: the ids at these positions.
        """
        if len(self._shards) == 1:
            return self._shards[0][positions].astype(np.int32)
        tokens = np.empty(np.shape(positions), np.int32)
        shard_of = np.searchsorted(self._shard_starts, positions, side="right") - 1
        for index in np.unique(shard_of):
            inside = shard_of == index
            tokens[inside] = self._shards[index][positions[inside] - self._shard_starts[index]]
        return tokens

    def _check_sizes(self) -> None:
        ends = int(self.document_starts[-1]), int(self.sentence_starts[-1])
        if ends != (self.num_sentences, self.num_tokens):
            raise UserError(
                f"the index files in {self.directory} do not agree with each other: "
                "prepare the corpus again in an empty directory"
            )

    def _open_index(self, local: Path, name: str) -> np.ndarray:
        path = self.directory / name
        try:
            array = np.load(local / name, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise UserError(
                f"{self.directory} is not a finished split of a token store: {name} is missing"
            ) from None
        except (ValueError, EOFError) as error:
            raise UserError(f"{path} is damaged ({error}): prepare the corpus again") from None
        if array.dtype != np.int64 or array.ndim != 1 or array.size == 0:
            raise UserError(f"{path} is not a vector of int64: prepare the corpus again")
        return np.asarray(array)


def open_vector(local: Path, dtype: np.dtype, length: int, path: Path | epath.Path) -> np.ndarray:
    """Memory-maps a file of `length` values; messages name it as `path`."""
    found = local.stat().st_size if local.exists() else 0
    if found != length * dtype.itemsize:
        raise UserError(
            f"{path} should have {length * dtype.itemsize} bytes but has {found}: "
            "prepare the corpus again in an empty directory"
        )
    # A plain view: indexing np.memmap itself is several times slower.
    return np.asarray(np.memmap(local, dtype, mode="r"))


class OutputFile:
    """A local file that is written in pieces and flushed to disk when it is closed."""

    def __init__(self, path: Path):
        self._path = path
        self._file = open(path, "wb")  # noqa: SIM115

    def write(self, content: bytes) -> None:
        with naming(self._path):
            self._file.write(content)

    def seek(self, position: int) -> None:
        with naming(self._path):
            self._file.seek(position)

    def tell(self) -> int:
        return self._file.tell()

    def finish(self) -> None:
        """Returns when the content is on disk."""
        with naming(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def close(self) -> None:
        with naming(self._path):
            self._file.close()


class SplitWriter:
    """Writes one split, document by document, in bounded memory.

    As a context manager it is closed when the block ends without an exception; otherwise the split
    stays visibly incomplete.

    Args:
      directory: A local directory, created if needed, that holds no split yet.
      vocab_size: All ids are below it.
      shard_tokens: See `SHARD_TOKENS`.
    """

    def __init__(
        self, directory: str | os.PathLike, vocab_size: int, *, shard_tokens: int = SHARD_TOKENS
    ):
        self._directory = directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.num_documents = self.num_sentences = self.num_tokens = 0
        self._shard_tokens = shard_tokens
        self._dtype = token_dtype(vocab_size)
        self._counts = np.zeros(vocab_size, np.int64)
        self._uncounted: list[np.ndarray] = []
        self._num_uncounted = 0
        self._shard: OutputFile | None = None
        self._shard_starts: list[int] = []
        self._sentence_starts = _VectorFile(directory / "sentence_starts.npy")
        self._document_starts = _VectorFile(directory / "document_starts.npy")

    def append(self, document: Sequence[np.ndarray]) -> None:
        """Adds a document: the ids of each of its sentences, none of them empty."""
        lengths = np.fromiter((len(s) for s in document), np.int64, len(document))
        if not lengths.size or not lengths.all():
            raise ValueError("a document needs sentences, and each sentence tokens")
        self.append_flat(np.concatenate(document), lengths)

    def append_flat(self, tokens: np.ndarray, sentence_lengths: np.ndarray) -> None:
        """Adds a document as one array of ids and the int64 lengths of its sentences."""
        self._document_starts.append(np.array([self.num_sentences]))
        starts = self.num_tokens + np.cumsum(sentence_lengths) - sentence_lengths
        self._sentence_starts.append(starts)
        self._write_tokens(tokens)
        self._count(tokens)
        self.num_documents += 1
        self.num_sentences += len(sentence_lengths)
        self.num_tokens += len(tokens)

    def close(self) -> None:
        """Finishes the split; `token_counts.npy` is written last."""
        self._close_shard()
        self._document_starts.append(np.array([self.num_sentences]))
        self._sentence_starts.append(np.array([self.num_tokens]))
        self._document_starts.close()
        self._sentence_starts.close()
        self._add_up_counts()
        for name, vector in (
            ("shard_starts", np.array([*self._shard_starts, self.num_tokens])),
            ("token_counts", self._counts),
        ):
            vector_file = _VectorFile(self._directory / f"{name}.npy")
            vector_file.append(vector)
            vector_file.close()

    def __enter__(self) -> "SplitWriter":
        return self

    def __exit__(self, exception_type, *_) -> None:
        if exception_type is None:
            self.close()

    def _write_tokens(self, tokens: np.ndarray) -> None:
        if self._shard and self.num_tokens - self._shard_starts[-1] >= self._shard_tokens:
            self._close_shard()
        if self._shard is None:
            self._shard = OutputFile(self._directory / shard_name(len(self._shard_starts)))
            self._shard_starts.append(self.num_tokens)
        self._shard.write(tokens.astype(self._dtype, copy=False).tobytes())

    def _close_shard(self) -> None:
        if self._shard is not None:
            self._shard.finish()
            self._shard = None

    def _count(self, tokens: np.ndarray) -> None:
        self._uncounted.append(tokens)
        self._num_uncounted += len(tokens)
        if self._num_uncounted >= _COUNT_TOKENS:
            self._add_up_counts()

    def _add_up_counts(self) -> None:
        if self._uncounted:
            tokens = np.concatenate(self._uncounted)
            self._counts += np.bincount(tokens, minlength=len(self._counts))
        self._uncounted, self._num_uncounted = [], 0


class _VectorFile:
    """An int64 vector in an .npy file of a length that is not known in advance.

    numpy pads the header for the first dimension to grow; it is written again, at the same size,
    once the length is known.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = OutputFile(path)
        self._length = 0
        self._header_size = self._write_header()

    def append(self, values: np.ndarray) -> None:
        self._file.write(values.astype("<i8", copy=False).tobytes())
        self._length += len(values)

    def close(self) -> None:
        self._file.seek(0)
        if self._write_header() != self._header_size:
            raise RuntimeError(f"the header of {self._path} changed its size")
        self._file.finish()

    def _write_header(self) -> int:
        header = {"descr": "<i8", "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)
        return self._file.tell()


def write_metadata(directory: Path, metadata: dict[str, Any]) -> None:
    """Marks a store as complete: writes `metadata.json`, atomically."""
    text = json.dumps({"format_version": FORMAT_VERSION, **metadata}, indent=2, ensure_ascii=False)
    files.write_whole(directory / "metadata.json", text.encode() + b"\n")


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
    except UserError:
        metadata = {}
    if (version := metadata.get("format_version", FORMAT_VERSION)) != FORMAT_VERSION:
        raise UserError(
            f"{path} is of format version {version}, this program reads version "
            f"{FORMAT_VERSION}: prepare the corpus again"
        )
    if not _is_whole(metadata):
        raise UserError(f"{path} is damaged: prepare the corpus again")
    return metadata


def _is_whole(metadata: dict[str, Any]) -> bool:
    """Returns whether the metadata have every key that this program reads."""
    try:
        return (
            isinstance(metadata["vocab_size"], int)
            and isinstance(metadata["dropped_documents"], dict)
            and isinstance(metadata["options"]["input"], list)
            and {"tokenizer", "lowercase"} <= metadata["options"].keys()
            and {"kind", "fingerprint"} <= metadata["tokenizer"].keys()
            and "train" in metadata["splits"]
            and all(_COUNTS <= counts.keys() for counts in metadata["splits"].values())
            and all({"path", "bytes"} <= s.keys() or _TFDS <= s.keys() for s in metadata["sources"])
        )
    except (KeyError, TypeError, AttributeError):
        return False
