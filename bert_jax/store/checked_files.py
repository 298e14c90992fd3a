"""Memory-maps the files of a token store and compares them with their checksums."""

import contextlib
import errno
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError, with_filename

# Holds for each file of a directory, by name, the checksums of its chunks: uint32 [C].
CHECKSUMS = "checksums.npz"
_CHUNK_BYTES = 2**16


def write_checksums(directory: Path, item_bytes: Mapping[str, int]) -> None:
    """Writes the checksums of files in a directory, given the size of one item of each."""
    sums = {name: _checksums(directory / name, size) for name, size in item_bytes.items()}
    np.savez(directory / CHECKSUMS, **sums)


def read_checksums(directory: Path | epath.Path, local: Path) -> dict[str, np.ndarray]:
    """Returns the checksums of the files in `local`, the local copy of `directory`.

    Raises:
      UserError: There are none, or they are damaged.
    """
    try:
        with np.load(local / CHECKSUMS, allow_pickle=False) as sums:
            return dict(sums)
    except FileNotFoundError:
        raise UserError(_unfinished(directory, CHECKSUMS)) from None
    # A damaged header may ask for any amount of memory.
    except (ValueError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise UserError(_damaged(directory / CHECKSUMS, error)) from None


@contextlib.contextmanager
def sparse_copy(directory: Path | epath.Path, names: Sequence[str]) -> Iterator[Path]:
    """Yields the local directory, or a scratch copy in which only some files have their content.

    The other files of the copy have their size, but take no space on the disk: `CheckedVector`
    fetches what is read. As in `files.local_copy`, memory maps stay valid after the block.

    Args:
      directory: A directory without subdirectories.
      names: The files to copy, as far as they exist.
    """
    found = files.list_files(directory) if files.is_remote(directory) else {}
    copied = [name for name in names if name in found]
    with files.local_copy(directory, copied) as local:
        for name in found.keys() - {*copied}:
            (local / name).touch()
            os.truncate(local / name, found[name]["size"])
        yield local


def open_index(
    directory: Path | epath.Path, local: Path, name: str, checksums: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Memory-maps an .npy file from `local`, the local copy of `directory`; verifies all of it."""
    try:
        # A plain view: indexing np.memmap itself is several times slower.
        index = np.asarray(np.load(local / name, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError:
        raise UserError(_unfinished(directory, name)) from None
    except (ValueError, EOFError) as error:
        raise UserError(_damaged(directory / name, error)) from None
    if not np.array_equal(checksums.get(name), _checksums(local / name)):
        raise UserError(_damaged(directory / name))
    return index


class CheckedVector:
    """A memory-mapped vector. Each chunk of it is verified when it is first read.

    Args:
      local: A file of `length` values.
      dtype, length: The dtype and the number of the values.
      path: The file that `local` is a copy of, or `local` itself.
      checksums: See `read_checksums`.
      is_sparse: Whether `local` is empty (see `sparse_copy`). Each chunk is then fetched from
        `path` before it is verified.

    Raises:
      UserError: The file has another size, or lacks checksums.
    """

    def __init__(
        self,
        local: Path,
        dtype: np.dtype,
        length: int,
        path: Path | epath.Path,
        checksums: Mapping[str, np.ndarray],
        *,
        is_sparse: bool = False,
    ):
        found = local.stat().st_size if local.exists() else 0
        if found != length * dtype.itemsize:
            raise UserError(
                f"{path} should have {length * dtype.itemsize} bytes but has {found}: "
                "prepare the corpus again in an empty directory"
            )
        self._values, self._path = np.asarray(np.memmap(local, dtype, mode="r")), path
        # A write to a memory map on a full disk would end the process.
        self._sparse_file = local.open("r+b") if is_sparse else None
        self._chunk_items = _CHUNK_BYTES // dtype.itemsize
        self._is_new_C = np.ones(-(-length // self._chunk_items), bool)
        self._checksum_C = checksums.get(path.name)
        if np.shape(self._checksum_C) != self._is_new_C.shape:
            raise UserError(_damaged(path.parent / CHECKSUMS, f"it does not fit {path.name}"))

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """Returns the values at these indices, int64 of any shape.

        Raises:
          UserError: A chunk that holds one of them is damaged.
        """
        chunks = indices // self._chunk_items
        if self._is_new_C[chunks].any():
            # np.unique would take longer than the checksums.
            is_read_C = np.zeros_like(self._is_new_C)
            is_read_C[chunks] = True
            self._load(np.flatnonzero(is_read_C & self._is_new_C))
        return self._values[indices]

    def fetch(self, first: int, stop: int) -> None:
        """Copies the values from `first` to `stop` from object storage, before they are read."""
        if self._sparse_file:
            chunks = slice(first // self._chunk_items, -(-stop // self._chunk_items))
            new_N = chunks.start + np.flatnonzero(self._is_new_C[chunks])
            if new_N.size:
                self._load(new_N)

    def _load(self, chunk_N: np.ndarray) -> None:
        # Two threads may do this for the same chunk, which does no harm.
        if self._sparse_file:
            self._copy(chunk_N)
        self._verify(chunk_N)
        self._is_new_C[chunk_N] = False

    def _copy(self, chunk_N: np.ndarray) -> None:
        """Copies chunks, in ascending order, to the local file: adjacent ones by one request."""
        size = self._chunk_items * self._values.itemsize
        runs = np.split(chunk_N, np.flatnonzero(np.diff(chunk_N) > 1) + 1)
        firsts = [int(run[0]) * size for run in runs]
        ends = [min(int(run[-1] + 1) * size, self._values.nbytes) for run in runs]
        paths = [os.fspath(self._path)] * len(runs)
        contents = files.filesystem().cat_ranges(paths, firsts, ends, on_error="raise")
        with with_filename(f"a copy of {self._path}"):
            for first, content in zip(firsts, contents, strict=True):
                if os.pwrite(self._sparse_file.fileno(), content, first) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _verify(self, chunk_N: np.ndarray) -> None:
        for chunk in chunk_N.tolist():
            first = chunk * self._chunk_items
            values = self._values[first : first + self._chunk_items]
            if zlib.crc32(values) != self._checksum_C[chunk]:
                raise UserError(_damaged(self._path))


def _checksums(path: Path, item_bytes: int = 1) -> np.ndarray:
    """Returns the checksum of each chunk of a file; chunks hold whole items."""
    size = _CHUNK_BYTES // item_bytes * item_bytes
    with path.open("rb") as file:
        chunks = iter(lambda: file.read(size), b"")
        return np.array([zlib.crc32(chunk) for chunk in chunks], np.uint32)


def _unfinished(directory: Path | epath.Path, missing: str) -> str:
    return f"{directory} is not a finished split of a token store: {missing} is missing"


def _damaged(path: Path | epath.Path, reason: Exception | str = "its checksum is wrong") -> str:
    return f"{path} is damaged ({reason}): remove the token store and prepare the corpus again"
