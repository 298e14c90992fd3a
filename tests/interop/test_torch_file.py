"""pytorch_model.bin: its values, and files that are refused."""

import os
import pickle
import sys

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.interop import formats
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


@pytest.fixture
def directory(tmp_path):
    """A directory of `transformers` without its weights, which each test writes."""
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    (tmp_path / "hf" / "model.safetensors").rename(tmp_path / "model.safetensors")
    return tmp_path / "hf"


def test_missing_torch_gives_one_sentence_with_advice(directory, monkeypatch):
    (directory / "pytorch_model.bin").touch()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"pytorch_model.bin .* pip install -e '.\[torch\]', or"):
        formats.read(directory)


@pytest.mark.outside
@pytest.mark.parametrize(
    ("is_zip", "dtype"), [(True, "float32"), (True, "bfloat16"), (False, "float16")]
)
def test_a_directory_with_a_bin_file(torch, directory, is_zip, dtype):
    from safetensors.torch import load_file

    tensors = load_file(directory.parent / "model.safetensors")
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    kernel = "bert.encoder.layer.0.intermediate.dense.weight"
    # Views of other tensors keep their values.
    tensors[kernel] = tensors[kernel].T.contiguous().T
    path = directory / "pytorch_model.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=is_zip)
    expected = make_pretrained().weights
    for name, value in expected.items():
        expected[name] = torch.tensor(value).to(getattr(torch, dtype)).float().numpy()
    assert same_weights(formats.read(directory).weights, expected)
    os.truncate(path, 300)
    with pytest.raises(UserError, match="pytorch_model.bin is damaged"):
        formats.read(directory)


@pytest.mark.outside
@pytest.mark.parametrize("is_zip", [True, False])
def test_pickled_code_is_not_executed(torch, directory, is_zip):
    path = directory / "pytorch_model.bin"
    attack = {"weight": Call(os.mkdir, str(directory / "hacked"))}
    torch.save(attack, path, _use_new_zipfile_serialization=is_zip)
    for content in (path.read_bytes(), pickle.dumps(attack)):
        path.write_bytes(content)
        with pytest.raises(UserError, match="bin is damaged or another program's: UnpicklingError"):
            formats.read(directory)
    assert not (directory / "hacked").exists()


@pytest.mark.outside
def test_values_that_are_not_tensors_are_refused(torch, directory):
    bias = torch.ones(28, dtype=torch.int16)
    for value, words in (
        ([torch.ones(3)], "bin is damaged"),
        ({"model": {"a": torch.ones(3)}}, "bin is damaged"),
        ({3: torch.ones(3)}, "missing: bert.embeddings"),
        ({"cls.predictions.bias": np.ones(3)}, "bin is damaged"),
        ({"cls.predictions.bias": bias}, "missing: bert.embeddings"),
    ):
        torch.save(value, directory / "pytorch_model.bin")
        with pytest.raises(UserError, match=words):
            formats.read(directory)
