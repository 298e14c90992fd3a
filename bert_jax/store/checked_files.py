"""Checksums of the files of a token store, and vectors that are fetched from object storage."""

import contextlib
import errno
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError, with_filename

# Holds the CRC-32 of each file of a directory, by name.
CHECKSUMS = "checksums.json"
_READ_BYTES = 2**20
# What is fetched at once from a file in object storage.
_CHUNK_BYTES = 2**16


def write_checksums(directory: Path, names: Iterable[str]) -> None:
    """Writes the checksums of some files of a directory."""
    checksums = {name: checksum(directory / name) for name in sorted(names)}
    files.write_json(directory / CHECKSUMS, checksums)


def read_checksums(directory: Path | epath.Path) -> dict[str, int]:
    """Returns the checksums of the files of a directory; none for a store of an older version."""
    try:
        return files.read_json(directory / CHECKSUMS)
    except FileNotFoundError:
        return {}


def verify(directory: Path | epath.Path) -> int:
    """Compares all files of a directory with their checksums; returns the number of files."""
    checksums = files.read_json(directory / CHECKSUMS)
    for name, expected in checksums.items():
        check(directory / name, directory / name, expected)
    return len(checksums)


def open_index(
    directory: Path | epath.Path, local: Path, name: str, checksums: Mapping[str, int]
) -> np.ndarray:
    """Memory-maps an .npy file from `local`, the local copy of `directory`; verifies all of it."""
    if name in checksums:
        check(directory / name, local / name, checksums[name])
    # A plain view: indexing np.memmap itself is several times slower.
    return np.asarray(np.load(local / name, mmap_mode="r", allow_pickle=False))


def open_vector(
    path: Path | epath.Path, local: Path, dtype: np.dtype, length: int
) -> "np.ndarray | FetchedVector":
    """Memory-maps a file of `length` values.

    Args:
      local: `path` itself, or an empty copy of a file in object storage; see `sparse_copy`.
    """
    found = local.stat().st_size if local.exists() else 0
    if found != length * dtype.itemsize:
        raise UserError(
            f"{path} should have {length * dtype.itemsize} bytes but has {found}: "
            "prepare the corpus again in an empty directory"
        )
    if files.is_remote(path):
        return FetchedVector(path, local, dtype)
    return np.asarray(np.memmap(local, dtype, mode="r"))


@contextlib.contextmanager
def sparse_copy(directory: Path | epath.Path, names: Sequence[str]) -> Iterator[Path]:
    """Yields the local directory, or a scratch copy in which only some files have their content.

    The other files of the copy have their size, but take no space on the disk: `FetchedVector`
    fetches what is read. As in `files.local_copy`, memory maps stay valid after the block.
    """
    found = files.list_files(directory) if files.is_remote(directory) else {}
    copied = [name for name in names if name in found]
    with files.local_copy(directory, copied) as local:
        for name in found.keys() - {*copied}:
            (local / name).touch()
            os.truncate(local / name, found[name]["size"])
        yield local


class FetchedVector:
    """A vector in object storage. Each chunk of it is copied to the disk when it is first read.

    Args:
      local: A file of the same size without content.
    """

    def __init__(self, path: epath.Path, local: Path, dtype: np.dtype):
        self._path = os.fspath(path)
        self._values = np.asarray(np.memmap(local, dtype, mode="r"))
        # A write to a memory map on a full disk would end the process.
        self._file = local.open("r+b")
        self._chunk_items = _CHUNK_BYTES // dtype.itemsize
        self._is_new_C = np.ones(-(-len(self._values) // self._chunk_items), bool)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """Returns the values at these indices, int64 of any shape."""
        chunks = indices // self._chunk_items
        if self._is_new_C[chunks].any():
            # np.unique would take longer.
            is_read_C = np.zeros_like(self._is_new_C)
            is_read_C[chunks] = True
            self._copy(np.flatnonzero(is_read_C & self._is_new_C))
        return self._values[indices]

    def fetch(self, first: int, stop: int) -> None:
        """Copies the values from `first` to `stop` before they are read."""
        chunks = slice(first // self._chunk_items, -(-stop // self._chunk_items))
        new_N = chunks.start + np.flatnonzero(self._is_new_C[chunks])
        if new_N.size:
            self._copy(new_N)

    def _copy(self, chunk_N: np.ndarray) -> None:
        # Two threads may do this for the same chunk, which does no harm.
        size = self._chunk_items * self._values.itemsize
        runs = np.split(chunk_N, np.flatnonzero(np.diff(chunk_N) > 1) + 1)
        firsts = [int(run[0]) * size for run in runs]
        ends = [min(int(run[-1] + 1) * size, self._values.nbytes) for run in runs]
        paths = [self._path] * len(runs)
        contents = files.filesystem().cat_ranges(paths, firsts, ends, on_error="raise")
        with with_filename(f"a copy of {self._path}"):
            for first, content in zip(firsts, contents, strict=True):
                if os.pwrite(self._file.fileno(), content, first) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._is_new_C[chunk_N] = False


def checksum(path: Path | epath.Path) -> int:
    found = 0
    with files.open_input(path) as file:
        while content := file.read(_READ_BYTES):
            found = zlib.crc32(content, found)
    return found


def check(path: Path | epath.Path, local: Path | epath.Path, expected: int) -> None:
    """Compares `local`, the local copy of a file or the file itself, with its checksum."""
    if checksum(local) != expected:
        raise damaged(path)


def damaged(path: Path | epath.Path) -> UserError:
    return UserError(f"{path} is damaged: remove the token store and prepare the corpus again")
