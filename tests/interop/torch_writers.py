"""PyTorch weights files written by hand, instruction by instruction: right ones and wrong ones."""

import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = ("torch_zip.bin", "torch_zip_protocol_4.bin", "torch_legacy.bin")
PROTO, STOP = b"\x80\x02", b"."


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    raw = value.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def numbers(values) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(key="0", kind="FloatStorage", size=6, more=b"") -> bytes:
    """The instructions that name a storage."""
    kind = f"ctorch\n{kind}\n".encode()
    return b"(" + text("storage") + kind + text(key) + text("cpu") + number(size) + more + b"tQ"


def tensor(stored=None, offset=0, shape=(6,), strides=(1,), more=b"") -> bytes:
    """The instructions that build one tensor, wrong or right."""
    stored = storage() if stored is None else stored
    view = number(offset) + numbers(shape) + numbers(strides)
    hooks = b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + stored + view + b"\x89" + hooks + more + b"tR"


def state(*tensors: bytes) -> bytes:
    """The pickle of a state dict with tensors "0", "1", ..."""
    items = b"".join(text(str(i)) + one for i, one in enumerate(tensors))
    return PROTO + b"}(" + items + b"u" + STOP


SIX = np.arange(6, dtype="<f4").tobytes()


def zipped(path, program, storages=None, *, byteorder=b"little", **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("archive/data.pkl", program)
        if byteorder:
            archive.writestr("archive/byteorder", byteorder)
        for key, raw in ({"0": SIX} if storages is None else storages).items():
            archive.writestr(f"archive/data/{key}", raw)
    return path


def legacy(path, program, storages=None, *, protocol=1001):
    storages = {"0": (6, SIX)} if storages is None else storages
    head = [0x1950A86A20F9469CFC6C, protocol, {"little_endian": True}]
    with open(path, "wb") as file:
        file.writelines(pickle.dumps(value, 2) for value in head)
        file.write(program)
        file.write(pickle.dumps(list(storages), 2))
        file.writelines(struct.pack("<q", size) + raw for size, raw in storages.values())
    return path


WRITERS = pytest.mark.parametrize("write", [zipped, legacy])
