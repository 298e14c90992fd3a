"""pytorch_model.bin: its values, and files that are refused."""

import os
import pickle
import sys

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop import formats
from bert_jax.interop.torch_file import read_torch_file
from tests.interop.small_bert import make_pretrained, same_weights


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self._reduced = (function, arguments)

    def __reduce__(self):
        return self._reduced


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs pip install -e '.[torch]'")


def test_without_torch_one_sentence_tells_what_to_do(tmp_path, monkeypatch):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    (tmp_path / "hf" / "model.safetensors").rename(tmp_path / "hf" / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"pytorch_model.bin .* pip install -e '.\[torch\]', or"):
        formats.read(tmp_path / "hf")


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_directory_with_a_bin_file(torch, tmp_path, is_zip, dtype):
    from safetensors.torch import load_file

    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    path = tmp_path / "hf" / "pytorch_model.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=is_zip)
    (tmp_path / "hf" / "model.safetensors").unlink()
    expected = make_pretrained()
    for name, value in expected.weights.items():
        expected.weights[name] = torch.tensor(value).to(getattr(torch, dtype)).float().numpy()
    assert same_weights(formats.read(tmp_path / "hf").weights, expected.weights)


def test_integers_are_no_weights(torch, tmp_path):
    from safetensors.torch import load_file

    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    tensors["cls.predictions.bias"] = torch.ones(28, dtype=torch.int16)
    (tmp_path / "hf" / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "hf" / "pytorch_model.bin")
    with pytest.raises(UserError, match="cls.predictions.bias is int16"):
        formats.read(tmp_path / "hf")


@pytest.mark.parametrize("is_zip", [True, False])
def test_code_is_not_run(torch, tmp_path, is_zip):
    attack = {"weight": Call(os.mkdir, str(tmp_path / "hacked"))}
    torch.save(attack, tmp_path / "x.bin", _use_new_zipfile_serialization=is_zip)
    (tmp_path / "y.bin").write_bytes(pickle.dumps(attack))
    for name in ("x.bin", "y.bin"):
        with pytest.raises(UserError, match=f"{name} is damaged, or holds something other than"):
            read_torch_file(tmp_path / name)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_file_that_is_cut_short(torch, tmp_path, is_zip):
    path = tmp_path / "x.bin"
    torch.save({"a": torch.ones(3000)}, path, _use_new_zipfile_serialization=is_zip)
    for size in (5000, 300, 0):
        os.truncate(path, size)
        with pytest.raises(UserError, match="x.bin is damaged"):
            read_torch_file(path)


def test_other_values_are_no_state_dict(torch, tmp_path):
    for value in ([torch.ones(3)], {"model": {"a": torch.ones(3)}}, {3: torch.ones(3)}):
        torch.save(value, tmp_path / "x.bin")
        with pytest.raises(UserError, match="x.bin is not a state dict"):
            read_torch_file(tmp_path / "x.bin")


def test_shared_and_transposed_tensors_keep_their_values(torch, tmp_path):
    whole = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": whole, "b": whole.T, "c": whole[1]}, tmp_path / "x.bin")
    state = {name: x.numpy() for name, x in read_torch_file(tmp_path / "x.bin").items()}
    np.testing.assert_array_equal(state["b"], state["a"].T)
    np.testing.assert_array_equal(state["c"], [3, 4, 5])
