"""A file in object storage, read at random: blocks of it are kept on the local disk."""

import functools
import os
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from etils import epath

from bert_jax import storage
from bert_jax.errors import naming

# Fetched at a time. A request takes some 50 ms, and one connection gives some 100 MB/s: a
# smaller block would mostly wait, a larger one would mostly bring what is not asked for yet.
BLOCK_BYTES = 2**22
_CONNECTIONS = 16


class CachedFile:
    """A scratch copy of an object that fills up as its bytes are asked for.

    It has no name, is as long as the object, takes as much disk as has been asked for, and
    is read through the page cache, as a file of one's own: it takes no memory beside the
    blocks under way. Any number of threads may use it.

    Args:
      path: The object.
      num_bytes: Its size.
    """

    def __init__(self, path: epath.Path, num_bytes: int):
        self._path, self._num_bytes = path, num_bytes
        self._file = tempfile.TemporaryFile()
        self._file.truncate(num_bytes)
        self._is_here = np.zeros(-(-num_bytes // BLOCK_BYTES), bool)
        self._lock = threading.Lock()
        self._under_way: dict[int, Future] = {}

    def mapped(self, dtype: np.dtype, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """The bytes from `offset` on as an array, right where they are here."""
        return np.asarray(np.memmap(self._file, dtype, "r", offset, shape))

    def npy(self) -> np.ndarray:
        """The array of an .npy file that is here as a whole; ValueError if it is none."""
        self._file.seek(0)
        version = np.lib.format.read_magic(self._file)
        if version != (1, 0):
            raise ValueError(f"version {version} of the npy format is not known")
        shape, _, dtype = np.lib.format.read_array_header_1_0(self._file)
        return self.mapped(dtype, shape, self._file.tell())

    def fetch(self, positions: np.ndarray, width: int) -> None:
        """Returns when the `width` bytes (below a block's) at each of these positions are here."""
        positions = np.ravel(positions)
        ends = (positions, positions + (width - 1))
        blocks = np.unique(np.concatenate([end // BLOCK_BYTES for end in ends]))
        missing = blocks[~self._is_here[blocks]].tolist()
        if not missing:
            return
        with self._lock:
            # Of those that another thread has asked for meanwhile some are here by now.
            missing = [block for block in missing if not self._is_here[block]]
            for block in missing:
                if block not in self._under_way:
                    self._under_way[block] = _pool().submit(self._fetch_block, block)
            futures = [self._under_way[block] for block in missing]
        for future in futures:
            future.result()

    def fetch_all(self) -> None:
        """Returns when the whole object is here."""
        self.fetch(np.arange(0, self._num_bytes, BLOCK_BYTES), 1)

    def _fetch_block(self, block: int) -> None:
        start = block * BLOCK_BYTES
        stop = min(start + BLOCK_BYTES, self._num_bytes)
        try:
            content = storage.read_range(self._path, start, stop)
            if len(content) != stop - start:
                raise OSError(f"{self._path}: bytes {start} to {stop} are not there")
            with naming(f"a copy of {self._path} in {tempfile.gettempdir()}"):
                os.pwrite(self._file.fileno(), content, start)
            self._is_here[block] = True
        finally:
            with self._lock:
                del self._under_way[block]


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """Threads for the requests of all files together."""
    return ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="fetch")


class CachedArray:
    """A vector in a `CachedFile`, to be indexed with arrays of positions as numpy's is."""

    def __init__(self, path: epath.Path, dtype: np.dtype, length: int):
        self.dtype = dtype
        self._file = CachedFile(path, length * dtype.itemsize)
        self._array = self._file.mapped(dtype, (length,))

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """The values at these positions, int64 of any shape, each from 0 on."""
        self._file.fetch(positions * self.dtype.itemsize, self.dtype.itemsize)
        return self._array[positions]


def open_vector(path: Path | epath.Path, dtype: np.dtype, length: int) -> np.ndarray | CachedArray:
    """A file of `length` values: a memory map, or its like for an object."""
    if storage.is_remote(path):
        return CachedArray(path, dtype, length)
    # A plain view: indexing np.memmap itself is several times slower.
    return np.asarray(np.memmap(path, dtype, mode="r"))


def open_npy(path: Path | epath.Path) -> np.ndarray:
    """An .npy file as numpy writes it, mapped into memory; of an object, a scratch copy is.

    Raises:
      FileNotFoundError, ValueError, EOFError: it is not there, or damaged.
    """
    if not storage.is_remote(path):
        return np.load(path, mmap_mode="r", allow_pickle=False)
    file = CachedFile(path, path.stat().length)
    file.fetch_all()
    return file.npy()
