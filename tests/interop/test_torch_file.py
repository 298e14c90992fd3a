"""PyTorch's weights files: their values, and what is told of a file that is none."""

import io
import pickle
import struct
import zipfile

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.torch_file import read_torch_file
from tests.interop.torch_writers import (
    FILES,
    GOLDEN,
    PROTO,
    SIX,
    STOP,
    WRITERS,
    legacy,
    state,
    storage,
    tensor,
    text,
    zipped,
)


@pytest.mark.parametrize("name", FILES)
def test_values_are_those_that_torch_saved(name):
    actual = read_torch_file(GOLDEN / name)
    expected = np.load(GOLDEN / "torch_expected.npz")
    assert list(actual) == list(expected["__names__"])
    for key, dtype in zip(expected["__names__"], expected["__dtypes__"], strict=True):
        value = actual[key]
        assert value.dtype.name == dtype, key
        if dtype == "bfloat16":
            value = value.astype(np.float32)
        np.testing.assert_array_equal(value, expected[key], strict=True, err_msg=key)
        assert not actual[key].flags.writeable or not actual[key].size
    assert {"float64", "float16", "bfloat16", "bool", "uint8"} <= set(expected["__dtypes__"])


@pytest.mark.parametrize("name", FILES)
def test_a_storage_that_tensors_share_is_read_once(name):
    actual = read_torch_file(GOLDEN / name)
    for key in ("tied", "transposed", "row", "column", "every second from the middle"):
        assert np.shares_memory(actual["whole"], actual[key]), key
    assert not np.shares_memory(actual["whole"], actual["float32"])


@WRITERS
def test_the_tests_own_writers_are_understood(tmp_path, write):
    """Or the refusals below would say nothing."""
    three = tensor(offset=1, shape=(2, 2), strides=(3, 1))
    actual = read_torch_file(write(tmp_path / "x.bin", state(tensor(), three)))
    np.testing.assert_array_equal(actual["0"], np.arange(6, dtype=np.float32), strict=True)
    np.testing.assert_array_equal(actual["1"], [[1, 2], [4, 5]])


def test_byte_order_of_a_zip_is_respected(tmp_path):
    three = np.array([1.5, -2.0, 0.25])
    for kind, bits in (
        ("FloatStorage", three.astype(">f4")),
        ("DoubleStorage", three.astype(">f8")),
    ):
        program = state(tensor(storage(kind=kind, size=3), shape=(3,)))
        path = zipped(tmp_path / "x.bin", program, {"0": bits.tobytes()}, byteorder=b"big")
        np.testing.assert_array_equal(read_torch_file(path)["0"], three)
    # bfloat16 is the upper half of a float32.
    upper = (three.astype("<f4").view("<u4") >> 16).astype(">u2")
    program = state(tensor(storage(kind="BFloat16Storage", size=3), shape=(3,)))
    path = zipped(tmp_path / "x.bin", program, {"0": upper.tobytes()}, byteorder=b"big")
    np.testing.assert_array_equal(read_torch_file(path)["0"].astype(np.float64), three)
    # Before torch wrote the entry, all were little-endian.
    path = zipped(tmp_path / "x.bin", state(tensor()), byteorder=None)
    np.testing.assert_array_equal(read_torch_file(path)["0"], np.arange(6))
    with pytest.raises(UserError, match="byte order"):
        read_torch_file(zipped(tmp_path / "x.bin", state(tensor()), byteorder=b"middle"))


@WRITERS
def test_any_byte_that_is_not_zero_is_true(tmp_path, write):
    program = state(tensor(storage(kind="BoolStorage", size=4), shape=(4,)))
    stored = b"\x00\x01\x02\xff" if write is zipped else (4, b"\x00\x01\x02\xff")
    actual = read_torch_file(write(tmp_path / "x.bin", program, {"0": stored}))["0"]
    assert actual.view(np.uint8).tolist() == [0, 1, 1, 1]


@WRITERS
def test_attributes_of_a_dict_are_ignored(tmp_path, write):
    made = b"ccollections\nOrderedDict\n)R"
    attributes = b"}" + text("_metadata") + b"}s" + text("keys") + b"Nsb"
    program = PROTO + made + text("w") + tensor() + b"s" + attributes + STOP
    assert list(read_torch_file(write(tmp_path / "x.bin", program))) == ["w"]


@WRITERS
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (PROTO + tensor() + STOP, "a value of type Tensor, not a state dict"),
        (PROTO + b"](" + tensor() + b"e" + STOP, "a value of type list, not a state dict"),
        (PROTO + b"N" + STOP, "holds nothing, not a state dict"),
        (PROTO + b"}" + text("model") + b"}s" + STOP, "type dict under 'model'; a state dict maps"),
        (PROTO + b"}" + text("epoch") + b"K\x03s" + STOP, "type int under 'epoch'"),
        (PROTO + b"}K\x03" + tensor() + b"s" + STOP, "under 3"),
        (state(tensor(storage(kind="ComplexFloatStorage"))), "type torch.ComplexFloatStorage"),
        (state(tensor(more=b"}" + text("neg") + b"\x88s")), "lazily negated"),
    ],
)
def test_what_is_no_state_dict_is_told_by_its_kind(tmp_path, write, program, message):
    path = write(tmp_path / "x.bin", program)
    with pytest.raises(UserError, match=message) as error:
        read_torch_file(path)
    assert str(path) in str(error.value)


OUTSIDE = {
    "longer": {"shape": (7,)},
    "offset": {"offset": 1},
    "offset at the end": {"offset": 6, "shape": (1,)},
    "stride": {"shape": (3,), "strides": (3,)},
    "one of two axes": {"shape": (2, 2), "strides": (4, 2)},
    "no axes": {"offset": 6, "shape": (), "strides": ()},
    "negative offset": {"offset": -1},
    "negative stride": {"offset": 5, "strides": (-1,)},
    "negative size": {"shape": (-1,)},
    "overflow of 64 bits": {"shape": (2, 2), "strides": (2**62, 2**62)},
    "overflow of 64 bits in bytes": {"shape": (2,), "strides": (2**62,)},
    "offset beyond 64 bits": {"offset": 2**64},
    "more axes than strides": {"shape": (2, 3)},
    "too many axes": {"shape": (1,) * 65, "strides": (1,) * 65},
    "an exabyte of one value": {"shape": (2**30, 2**30), "strides": (0, 0)},
    "a gigabyte of one value": {"shape": (2**28,), "strides": (0,)},
    "an endless empty one": {"shape": (0, 2**62, 2**62), "strides": (1, 1, 1)},
}


@WRITERS
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_view_beyond_its_storage_is_refused(tmp_path, write, name):
    path = write(tmp_path / "x.bin", state(tensor(), tensor(**OUTSIDE[name])))
    with pytest.raises(UserError, match=f"{path} is damaged"):
        read_torch_file(path)


@WRITERS
@pytest.mark.parametrize(
    "stored",
    [
        storage(size=5),
        storage(size=7),
        storage(size=2**50),
        storage(size=2**62),
        storage(size=-1),
        storage(key="1"),
        storage(key="../data.pkl"),
        storage(kind="DoubleStorage"),
        storage(kind="HalfStorage", size=12),
        b"K\x00",
        b"(K\x00tQ",
    ],
)
def test_a_storage_that_is_not_as_told_is_refused(tmp_path, write, stored):
    """The tensor beside it is right, so that two tales of one storage are tried too."""
    path = write(tmp_path / "x.bin", state(tensor(), tensor(stored, shape=(1,))))
    with pytest.raises(UserError, match=f"{path} is damaged"):
        read_torch_file(path)


@WRITERS
@pytest.mark.parametrize("size", [5, 7])
def test_a_storage_of_another_size_is_refused_although_the_view_lies_within(tmp_path, write, size):
    path = write(tmp_path / "x.bin", state(tensor(storage(size=size), shape=(1,))))
    with pytest.raises(UserError, match="has not the size"):
        read_torch_file(path)


def test_a_legacy_file_whose_storages_are_not_as_told_is_refused(tmp_path):
    for stored in ((2**62, SIX), (6, SIX[:-1]), (5, SIX)):
        with pytest.raises(UserError, match="is damaged"):
            read_torch_file(legacy(tmp_path / "x.bin", state(tensor()), {"0": stored}))
    huge = state(tensor(storage(size=2**50)))
    with pytest.raises(UserError, match="ends within a storage"):
        read_torch_file(legacy(tmp_path / "x.bin", huge, {"0": (2**50, SIX)}))
    with pytest.raises(UserError, match="protocol"):
        read_torch_file(legacy(tmp_path / "x.bin", state(tensor()), protocol=1000))


def test_a_zip_that_is_larger_inside_is_refused(tmp_path):
    million = {"0": bytes(4 << 20)}
    program = state(tensor(storage(size=1 << 20), shape=(1 << 20,)))
    path = zipped(tmp_path / "x.bin", program, million, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match="compressed"):
        read_torch_file(path)


def test_zip_entries_that_lie_over_one_another_are_refused(tmp_path):
    """400 entries, each told to reach to the end: 48 kB that would be 10 MB."""
    kilobytes = {str(i): bytes(24) for i in range(400)}

    def written(sizes):
        stored = [storage(key, "ByteStorage", sizes[key]) for key in kilobytes]
        return zipped(
            tmp_path / "x.bin", state(*(tensor(s, shape=(1,)) for s in stored)), kilobytes
        )

    path = written(dict.fromkeys(kilobytes, 24))
    assert len(read_torch_file(path)) == 400
    with zipfile.ZipFile(path) as archive:
        entries = [archive.getinfo(f"archive/data/{key}") for key in kilobytes]
        header = len(entries[0].FileHeader()) + 3
        sizes = {
            key: archive.start_dir - entry.header_offset - header
            for key, entry in zip(kilobytes, entries, strict=True)
        }
    raw = bytearray(written(sizes).read_bytes())
    for key, size in sizes.items():
        # Sum and sizes are at 16, 20 and 24 of a directory record, the name at 46.
        at = raw.rfind(f"archive/data/{key}".encode() + b"PK") - 46
        at = at if at > 0 else raw.rfind(f"archive/data/{key}".encode()) - 46
        raw[at + 16 : at + 28] = struct.pack("<III", 0, size, size)
    path.write_bytes(raw)
    with pytest.raises(UserError, match="is damaged"):
        read_torch_file(path)


def test_checksums_are_verified_unless_torch_was_told_not_to_write_them(tmp_path):
    path = zipped(tmp_path / "x.bin", state(tensor()))
    raw = path.read_bytes()
    path.write_bytes(raw.replace(SIX, SIX[:-1] + b"\x41"))
    with pytest.raises(UserError, match="CRC"):
        read_torch_file(path)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for entry in archive.infolist():
            raw = raw.replace(struct.pack("<I", entry.CRC), bytes(4))
    path.write_bytes(raw)
    np.testing.assert_array_equal(read_torch_file(path)["0"], np.arange(6))


@pytest.mark.parametrize(
    "content",
    [b"", b"PK", b"PK\x03\x04", b"\x80", b"\x80\x02", b"<!DOCTYPE html>", b"{}", b"cos\nsystem\n",
     b"version https://git-lfs.github.com/spec/v1\n", bytes(5000), pickle.dumps({"a": 1})],
)  # fmt: skip
def test_another_file_is_not_taken_for_weights(tmp_path, content):
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(UserError, match="no PyTorch weights file") as error:
        read_torch_file(path)
    assert str(error.value).startswith(str(path))


def test_another_zip_archive_is_not_taken_for_weights(tmp_path):
    path = tmp_path / "x.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<xml/>")
    with pytest.raises(UserError, match="without a data.pkl"):
        read_torch_file(path)


def test_a_missing_file_is_an_os_error_that_the_command_line_tells(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_torch_file(tmp_path / "absent.bin")
