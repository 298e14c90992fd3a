"""PyTorch's weights files that are made to do harm: no code, no memory, no time, no crash."""

import os
import pickle
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.torch_file import read_torch_file
from tests.interop.torch_writers import (
    FILES,
    GOLDEN,
    PROTO,
    STOP,
    WRITERS,
    state,
    storage,
    tensor,
    text,
    zipped,
)


class Call:
    """Pickled as a call of any function."""

    def __init__(self, function, *arguments):
        self.reduced = (function, arguments)

    def __reduce__(self):
        return self.reduced


def attacks(command: str) -> dict[str, bytes]:
    """Pickles each of which runs the command when unpickled."""
    shell, module = text(command), os.system.__module__
    system = f"c{module}\nsystem\n".encode()
    call = system + b"(" + shell + b"tR"
    made = b"ccollections\nOrderedDict\n)R"
    return {
        "a call": pickle.dumps(Call(os.system, command), 2),
        "a call, protocol 0": pickle.dumps(Call(os.system, command), 0),
        "a call, protocol 5": pickle.dumps(Call(os.system, command), 5),
        "a call of eval": pickle.dumps(Call(eval, f"__import__('os').system({command!r})"), 2),
        "nested in a value": pickle.dumps({"weight": [({"x": Call(os.system, command)},)]}, 2),
        "as a key": PROTO + b"}" + call + b"Ns" + STOP,
        "as a tensor's hooks": state(tensor()).replace(made, call),
        "as a storage": state(tensor(call)),
        "as a storage's name": state(tensor(storage(more=call))),
        "dropped from the stack": PROTO + call + b"0" + state(tensor())[2:],
        "by instance": PROTO + b"(" + shell + f"i{module}\nsystem\n".encode() + STOP,
        "by object": PROTO + b"(" + system + shell + b"o" + STOP,
        "by new object": PROTO + system + shell + b"\x85\x81" + STOP,
        "by a name on the stack": b"\x80\x04" + text(module) + text("system") + b"\x93" + shell
        + b"\x85R" + STOP,
        "by the state of a dict": PROTO + made + b"}" + text("__setstate__") + system + b"sb"
        + shell + b"b" + STOP,
        "by slots of a dict": PROTO + made + b"N}" + text("__setstate__") + system + b"s\x86b"
        + shell + b"b" + STOP,
        "by attributes of a function": PROTO + b"ctorch._utils\n_rebuild_tensor_v2\nN}"
        + text("__code__") + call + b"s\x86b" + STOP,
        "by an extension": PROTO + b"\x82\x01(" + shell + b"tR" + STOP,
    }  # fmt: skip


@WRITERS
@pytest.mark.parametrize("name", attacks(""))
def test_code_is_refused_and_not_run(tmp_path, write, name):
    witness = tmp_path / "executed"
    path = write(tmp_path / "x.bin", attacks(f"touch {witness}")[name])
    with pytest.raises(UserError) as error:
        read_torch_file(path)
    message = str(error.value)
    assert message.startswith(f"{path} holds code ("), message
    assert "not only weights: refused" in message and "\n" not in message
    if "eval" not in name and "extension" not in name and "dropped" not in name:
        assert f"{os.system.__module__}.system" in message, message
    assert not witness.exists()


def test_the_attacks_are_real(tmp_path):
    """One of them, by hand, where it can be unpickled: the witness can appear."""
    witness = tmp_path / "executed"
    pickle.loads(attacks(f"touch {witness}")["nested in a value"])
    assert witness.exists()


@WRITERS
@pytest.mark.parametrize(
    "name",
    [
        "torch.storage _load_from_bytes",
        "torch._utils _rebuild_tensor_v3",
        "torch load",
        "torch.hub load",
        "builtins dict",
        "collections defaultdict",
        "collections OrderedDict.fromkeys",
        "numpy.core.multiarray _reconstruct",
        "_codecs encode",
    ],
)
def test_only_the_names_of_a_state_dict_are_allowed(tmp_path, write, name):
    program = PROTO + "c{}\n{}\n".format(*name.split()).encode() + STOP
    with pytest.raises(UserError, match=r"holds code \(" + name.replace(" ", r"\.")):
        read_torch_file(write(tmp_path / "x.bin", program))


def test_a_name_in_the_file_cannot_write_on_the_terminal(tmp_path):
    with pytest.raises(UserError) as error:
        read_torch_file(zipped(tmp_path / "x.bin", b"cos\n\x1b[2Jsystem\r" + b"x" * 999 + b"\n."))
    assert str(error.value).isprintable() and len(str(error.value)) < 400


@WRITERS
@pytest.mark.parametrize(
    "program",
    [
        b"r\xff\xff\xff\xff",  # the memo's last place: C's unpickler would make room for all
        b"\x96" + b"\xff" * 7 + b"\x7f",  # a bytearray of exabytes
        b"\x8d" + b"\xff" * 7 + b"\x7f",  # a text of exabytes
        b"\x95" + b"\xff" * 7 + b"\x7f",  # a frame of exabytes
        b"\x8b" + b"\xff\xff\xff\x7f",  # a number of gigabytes
        b"L" + b"9" * 100_000 + b"L\n",  # a number that is slow to read
        # Tuples of tuples: 2**60 steps to hash, to compare or to show.
        b")q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"}h\x00Ns",
        b")q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"}" + text("a") + b"h\x00s",
        b"ctorch._utils\n_rebuild_tensor_v2\n)q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"h\x00R",
        b"]q\x00h\x00a" + text("system") + b"\x93",  # a list within itself as a module
        b"(" * 100_000,
        b")" + b"\x85" * 100_000,
    ],
)
def test_a_pickle_cannot_take_memory_or_time(tmp_path, write, program):
    before = resource.getrusage(resource.RUSAGE_SELF)
    path = write(tmp_path / "x.bin", PROTO + program + STOP)
    with pytest.raises(UserError):
        read_torch_file(path)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime - before.ru_utime < 2
    assert after.ru_maxrss - before.ru_maxrss < 100_000  # KiB


def read_or_refuse(path: Path) -> bool:
    """Whether it was read; anything but arrays or UserError fails the test."""
    try:
        tensors = read_torch_file(path)
    except UserError as e:
        assert str(e).startswith(str(path)) and len(str(e)) < 600
        return False
    for value in tensors.values():
        value.astype(value.dtype).sum()  # Every value lies in memory that is ours.
    return True


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere_is_refused(tmp_path, name):
    whole, path = (GOLDEN / name).read_bytes(), tmp_path / "x.bin"
    lengths = {*range(0, len(whole), 29), *range(len(whole) - 60, len(whole))}
    for length in sorted(lengths):
        path.write_bytes(whole[:length])
        assert not read_or_refuse(path), length


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_any_byte_changed_is_read_or_refused(tmp_path, name):
    whole, path = (GOLDEN / name).read_bytes(), tmp_path / "x.bin"
    rng = np.random.default_rng(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = []
    for _ in range(600):
        changed = np.frombuffer(whole, np.uint8).copy()
        at = rng.integers(0, len(whole), rng.integers(1, 4))
        changed[at] = rng.integers(0, 256, len(at))
        path.write_bytes(changed.tobytes())
        outcomes.append(read_or_refuse(path))
    assert {True, False} == set(outcomes)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_a_pickle_with_any_byte_changed_is_read_or_refused(tmp_path):
    """As above, but behind right checksums."""
    with zipfile.ZipFile(GOLDEN / "torch_zip.bin") as archive:
        parts = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    program = parts["data.pkl"]
    storages = {
        name.removeprefix("data/"): raw for name, raw in parts.items() if name.startswith("data/")
    }
    rng = np.random.default_rng(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = []
    for _ in range(600):
        changed = np.frombuffer(program, np.uint8).copy()
        at = rng.integers(0, len(program), rng.integers(1, 4))
        changed[at] = rng.integers(0, 256, len(at))
        path = zipped(tmp_path / "x.bin", changed.tobytes(), storages)
        outcomes.append(read_or_refuse(path))
    assert {True, False} == set(outcomes)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
