"""The command `convert`."""

import re
import sys

import numpy as np
import pytest

from bert_jax import convert
from bert_jax.base.errors import UserError
from bert_jax.interop import formats
from tests import runs
from tests.interop.small_bert import (
    TOKENS,
    make_pretrained,
    make_tokenizer,
    same_weights,
    write_google,
)
from tests.refusals import command


@pytest.fixture
def huggingface(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    return tmp_path / "hf"


def run(*arguments):
    return runs.run([sys.executable, "-m", "bert_jax.convert", *map(str, arguments)])


@pytest.mark.usefixtures("tensorflow")
def test_the_command(huggingface, tmp_path):
    google, back = tmp_path / "google", tmp_path / "back"
    google.mkdir()
    write_google(formats.read(huggingface), google)
    finished = run(f"--input={google}", f"--output={back}", "--to=huggingface")
    assert finished.returncode == 0, finished.stderr
    assert str(back) in finished.stdout and finished.stderr == ""
    one, other = ((path / "model.safetensors").read_bytes() for path in (huggingface, back))
    assert one == other


def test_a_vocabulary_from_elsewhere(huggingface, tmp_path):
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (huggingface / name).unlink()
    (huggingface / "special_tokens_map.json").unlink()
    with pytest.raises(UserError, match="--vocab=vocab.txt"):
        convert.convert(str(huggingface), str(tmp_path / "out"), "bert_jax")
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"{token}\n" for token in TOKENS))
    convert.convert(str(huggingface), str(tmp_path / "out"), "bert_jax", str(vocab), True)
    pretrained = formats.read(tmp_path / "out")
    assert pretrained.tokenizer.fingerprint == make_tokenizer().fingerprint
    assert same_weights(pretrained.weights, make_pretrained().weights)
    with pytest.raises(UserError, match="already has a tokenizer"):
        convert.convert(str(tmp_path / "out"), str(tmp_path / "x"), "huggingface", str(vocab))


def test_layers_of_a_bert_become_a_distilbert(huggingface, tmp_path):
    theirs, out = formats.read(huggingface).weights, tmp_path / "out"
    assert convert.convert(str(huggingface), str(out), "huggingface", distil_layers="2,0") == []
    student = formats.read(out)
    assert (student.family, student.terms) == ("distilbert", ("masked_lm",))
    assert len(student.weights) == 4 + 2 * 16 + 5
    for name, value in student.weights.items():
        teachers = re.sub(r"layer_([01])/", lambda m: f"layer_{'20'[int(m[1])]}/", name)
        np.testing.assert_array_equal(value, theirs[teachers])
    for source, layers, words in (
        (huggingface, "0,3", "has only the layers 0 to 2"),
        (out, "0", "the family of .*out is distilbert, not bert"),
        (huggingface, "a,b", "--distil_layers is 'a,b'; it must be numbers such as 0,2,4"),
    ):
        with pytest.raises(UserError, match=words):
            convert.convert(str(source), str(tmp_path / "x"), "bert_jax", distil_layers=layers)


def test_mistakes_in_the_flags():
    for arguments, words in (
        (["--output=x", "--to=bert_jax"], "--model is missing"),
        (["--input=x", "--output=y", "--to=onnx"], "bert_jax|huggingface|sentence_transformers"),
        (
            ["--input=x", "--output=y", "--to=bert_jax", "--pooling=cls"],
            "--pooling has no effect",
        ),
    ):
        assert words in command("convert", *arguments)
