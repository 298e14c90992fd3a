"""Reads a PyTorch state dict (`pytorch_model.bin`) without torch and without running code.

Two formats bear that name. Since torch 1.6 the file is a zip archive: PREFIX/data.pkl
is a pickle that tells the tensors, PREFIX/data/KEY are their storages as raw bytes,
PREFIX/byteorder is "little" or "big". Before (BERT's of 2019 among them) it is five
pickles in a row: a magic number, the protocol's version, facts of the system, the
tensors, the storages' keys; then each storage, its size in front.
"""

import io
import math
import os
import struct
import zipfile
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.torch_pickle import Refused, Storage, Tensor, read_pickle

_ZIP_MAGIC = b"PK\x03\x04"
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C.to_bytes(10, "little")
_LEGACY_PROTOCOL = 1001
# A tensor takes some 200 bytes of pickle. Legacy pickles do not tell their length:
# this many bytes are read to find their end.
_MAX_PICKLE_BYTES = 8 << 20
# A stride of 0 repeats values: without a limit, a kilobyte could stand for an exabyte.
_MAX_REPEATED_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


def read_torch_file(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the tensors of a state dict by name, in the file's order.

    Tensors that share a storage in the file share memory here; all are read-only.
    Beside the arrays, a few megabytes are held. bfloat16 is ml_dtypes.bfloat16.

    Raises:
      UserError: if the file holds code or anything but named tensors, is damaged or
        cut short, or is no such file at all.
    """
    with open(path, "rb") as file:
        try:
            start = file.read(len(_ZIP_MAGIC))
            file.seek(0)
            return _read_zip(file) if start == _ZIP_MAGIC else _read_legacy(file)
        except Refused as e:
            raise UserError(f"{path} {e}") from None
        except MemoryError:
            raise
        except Exception as e:
            # Whatever arbitrary bytes provoke, here or in zipfile, means the same.
            raise UserError(
                f"{path} is damaged, cut short or no PyTorch weights file ({e}): copy it again"
            ) from e


def _read_zip(file: BinaryIO) -> dict[str, np.ndarray]:
    archive = zipfile.ZipFile(file)
    names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(names) != 1:
        raise ValueError("it is a zip archive without a data.pkl")
    prefix = names[0].removesuffix("data.pkl")

    def read(name: str, limit: int) -> np.ndarray:
        entry = archive.getinfo(prefix + name)
        if entry.compress_type != zipfile.ZIP_STORED:
            raise Refused("is compressed: torch.save() stores values as they are; unpack it first")
        if entry.file_size > limit:
            raise ValueError(f"{name} is too large")
        if entry.CRC == 0:
            entry.CRC = None  # torch.serialization.set_crc32_options(False): not computed.
        with archive.open(entry) as stream:
            return _read_bytes(stream, entry.file_size)

    state = _state_dict(read_pickle(io.BytesIO(read("data.pkl", _MAX_PICKLE_BYTES).tobytes())))
    byteorder = b"little"  # Files older than this entry come from such machines.
    if f"{prefix}byteorder" in archive.NameToInfo:
        byteorder = read("byteorder", len("little")).tobytes()
        if byteorder not in (b"little", b"big"):
            raise ValueError("its byte order is neither little nor big")
    left = file_bytes = _size(file)
    values = {}
    for storage in _storages(state):
        # Entries that lie over one another would make much out of a small file.
        values[storage.key] = raw = read(f"data/{storage.key}", left)
        left -= raw.size
        if raw.size != storage.nbytes:
            raise ValueError(f"data/{storage.key} has not the size that data.pkl tells")
        if byteorder == b"big":
            raw.view(f"u{storage.dtype.itemsize}").byteswap(inplace=True)
    return _arrays(state, values, file_bytes)


def _read_legacy(file: BinaryIO) -> dict[str, np.ndarray]:
    head = file.read(_MAX_PICKLE_BYTES)
    # Asked first, so that a web page saved as a .bin is not said to hold code.
    if _LEGACY_MAGIC not in head[:32]:
        raise ValueError("it begins like none")
    pickles = io.BytesIO(head)
    _magic, protocol = read_pickle(pickles), read_pickle(pickles)
    if protocol != _LEGACY_PROTOCOL:
        raise ValueError("its protocol is unknown")
    read_pickle(pickles)  # Facts of the system that wrote; storages are little-endian on any.
    state, keys = _state_dict(read_pickle(pickles)), read_pickle(pickles)
    file.seek(pickles.tell())
    file_bytes = _size(file)
    storages = {storage.key: storage for storage in _storages(state)}
    values = {}
    for key in keys:
        storage = storages[key]
        if struct.unpack("<q", file.read(8)) != (storage.size,):
            raise ValueError(f"storage {key} has not the size that its tensors tell")
        if storage.nbytes > file_bytes - file.tell():
            raise ValueError("it ends within a storage")
        values[key] = _read_bytes(file, storage.nbytes)
    return _arrays(state, values, file_bytes)


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _read_bytes(file: BinaryIO, size: int) -> np.ndarray:
    """Reads `size` bytes into memory of their own, where they are aligned for any dtype."""
    raw = np.empty(size, np.uint8)
    left = memoryview(raw)
    while left:
        # In pieces: a zip entry makes each a bytes object first, and checks its sum.
        count = file.readinto(left[:_CHUNK_BYTES])
        if not count:
            raise EOFError("it ends within a storage")
        left = left[count:]
    return raw


def _state_dict(value: Any) -> dict[str, Tensor]:
    wanted = "a state dict maps names to tensors: save the model's state_dict() alone"
    if not isinstance(value, dict):
        raise Refused(f"holds {_kind(value)}, not a state dict; {wanted}")
    for name, tensor in value.items():
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            raise Refused(f"holds {_kind(tensor)} under {name!r:.100}; {wanted}")
    return value


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _storages(state: dict[str, Tensor]) -> Iterable[Storage]:
    """Each storage once, in the order of use."""
    storages: dict[str, Storage] = {}
    for tensor in state.values():
        one = tensor.storage
        other = storages.setdefault(one.key, one)
        if (one.dtype, one.size) != (other.dtype, other.size):
            raise ValueError(f"storage {one.key} is told in two ways")
    return storages.values()


def _arrays(
    state: dict[str, Tensor], values: dict[str, np.ndarray], file_bytes: int
) -> dict[str, np.ndarray]:
    for storage in _storages(state):
        raw = values[storage.key]
        if storage.dtype == np.bool_:
            np.not_equal(raw, 0, out=raw, casting="unsafe")  # numpy knows no other than 0 and 1.
        raw.flags.writeable = False
    limit = max(file_bytes, _MAX_REPEATED_BYTES)
    return {name: _view(name, tensor, values, limit) for name, tensor in state.items()}


def _view(name: str, tensor: Tensor, values: dict[str, np.ndarray], limit: int) -> np.ndarray:
    storage, shape = tensor.storage, tensor.shape
    itemsize = storage.dtype.itemsize
    # The stride of an axis of one is never stepped, and may be anything.
    strides = [s if n > 1 else 0 for n, s in zip(shape, tensor.strides, strict=True)]
    if 0 in shape:
        return np.empty(shape, storage.dtype)
    last = tensor.offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if last >= storage.size:
        raise ValueError(f"{name!r:.100} reaches beyond its storage")
    if math.prod(shape) * itemsize > limit:
        raise ValueError(f"{name!r:.100} has a size that no file of this length can hold")
    # Given a buffer, numpy checks once more that the view lies within it.
    return np.ndarray(
        shape,
        storage.dtype,
        buffer=values[storage.key],
        offset=tensor.offset * itemsize,
        strides=[s * itemsize for s in strides],
    )
