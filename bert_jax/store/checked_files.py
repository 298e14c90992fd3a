"""Memory-maps the files of a token store and compares them with their checksums."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from etils import epath

from bert_jax.base.errors import UserError

# Holds for each file of a directory, by name, the checksums of its chunks: uint32 [C].
CHECKSUMS = "checksums.npz"
_CHUNK_BYTES = 2**16


def write_checksums(directory: Path, item_bytes: Mapping[str, int]) -> None:
    """Writes the checksums of files in a directory, given the size of one item of each."""
    sums = {name: _checksums(directory / name, size) for name, size in item_bytes.items()}
    np.savez(directory / CHECKSUMS, **sums)


def read_checksums(directory: Path | epath.Path, local: Path) -> dict[str, np.ndarray]:
    """Returns the checksums of the files in `local`, the local copy of `directory`.

    The dict is empty if an older version of the program wrote the directory.
    """
    try:
        with np.load(local / CHECKSUMS, allow_pickle=False) as sums:
            return dict(sums)
    except FileNotFoundError:
        return {}
    # A damaged header may ask for any amount of memory.
    except (ValueError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise UserError(_damaged(directory / CHECKSUMS, error)) from None


def open_index(
    directory: Path | epath.Path, local: Path, name: str, checksums: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Memory-maps an .npy file from `local`, the local copy of `directory`; verifies all of it."""
    try:
        # A plain view: indexing np.memmap itself is several times slower.
        index = np.asarray(np.load(local / name, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError:
        raise UserError(
            f"{directory} is not a finished split of a token store: {name} is missing"
        ) from None
    except (ValueError, EOFError) as error:
        raise UserError(_damaged(directory / name, error)) from None
    if name in checksums and not np.array_equal(checksums[name], _checksums(local / name)):
        raise UserError(_damaged(directory / name))
    return index


class CheckedVector:
    """A memory-mapped vector. Each chunk of it is verified when it is first read.

    Args:
      local: A file of `length` values.
      dtype, length: The dtype and the number of the values.
      path: The name of the file in error messages.
      checksums: See `read_checksums`. Without those of this file, nothing is verified.

    Raises:
      UserError: The file has another size.
    """

    def __init__(
        self,
        local: Path,
        dtype: np.dtype,
        length: int,
        path: Path | epath.Path,
        checksums: Mapping[str, np.ndarray],
    ):
        found = local.stat().st_size if local.exists() else 0
        if found != length * dtype.itemsize:
            raise UserError(
                f"{path} should have {length * dtype.itemsize} bytes but has {found}: "
                "prepare the corpus again in an empty directory"
            )
        self._values, self._path = np.asarray(np.memmap(local, dtype, mode="r")), path
        self._chunk_items = _CHUNK_BYTES // dtype.itemsize
        self._checksum_C = checksums.get(path.name)
        if self._checksum_C is not None:
            self._is_new_C = np.ones(len(self._checksum_C), bool)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """Returns the values at these indices, int64 of any shape.

        Raises:
          UserError: A chunk that holds one of them is damaged.
        """
        if self._checksum_C is not None:
            chunks = indices // self._chunk_items
            if self._is_new_C[chunks].any():
                # np.unique would take longer than the checksums.
                is_read_C = np.zeros_like(self._is_new_C)
                is_read_C[chunks] = True
                for chunk in np.flatnonzero(is_read_C & self._is_new_C).tolist():
                    self._verify(chunk)
        return self._values[indices]

    def _verify(self, chunk: int) -> None:
        # Two threads may verify the same chunk; this does no harm.
        first = chunk * self._chunk_items
        if zlib.crc32(self._values[first : first + self._chunk_items]) != self._checksum_C[chunk]:
            raise UserError(_damaged(self._path))
        self._is_new_C[chunk] = False


def _checksums(path: Path, item_bytes: int = 1) -> np.ndarray:
    """Returns the checksum of each chunk of a file; chunks hold whole items."""
    size = _CHUNK_BYTES // item_bytes * item_bytes
    with path.open("rb") as file:
        chunks = iter(lambda: file.read(size), b"")
        return np.array([zlib.crc32(chunk) for chunk in chunks], np.uint32)


def _damaged(path: Path | epath.Path, error: Exception | None = None) -> str:
    reason = error or "its checksum is wrong"
    return f"{path} is damaged ({reason}): remove the token store and prepare the corpus again"
