"""The convert command, as a user runs it."""

import sys

import pytest

from bert_jax import convert
from bert_jax.errors import UserError
from bert_jax.interop import formats
from tests import runs
from tests.interop.small_bert import (
    TOKENS,
    drop_tensors,
    edit_tensors,
    make_pretrained,
    make_tokenizer,
    same_weights,
)
from tests.refusals import command


@pytest.fixture
def huggingface(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    return tmp_path / "hf"


def run(*arguments):
    return runs.run([sys.executable, "-m", "bert_jax.convert", *map(str, arguments)])


def test_the_command(huggingface, tmp_path):
    google, back = tmp_path / "google", tmp_path / "back"
    finished = run(f"--input={huggingface}", f"--output={google}", "--to=google")
    assert finished.returncode == 0, finished.stderr
    assert str(google) in finished.stdout and finished.stderr == ""
    assert {path.name for path in google.iterdir()} >= {
        "bert_config.json",
        "bert_model.ckpt.index",
        "vocab.txt",
    }
    assert convert.convert(str(google), str(back), "huggingface") == []
    one, other = ((path / "model.safetensors").read_bytes() for path in (huggingface, back))
    assert one == other


def test_missing_parts_are_reported(huggingface, tmp_path):
    edit_tensors(huggingface, lambda tensors: drop_tensors(tensors, "cls."))
    warnings = convert.convert(str(huggingface), str(tmp_path / "out"), "bert_jax")
    assert "has no masked-LM head and no next-sentence head: initialized at random" in warnings[0]


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
        convert.convert(str(tmp_path / "out"), str(tmp_path / "x"), "google", str(vocab))


def test_mistakes_in_the_flags():
    for arguments, words in (
        (["--output=x", "--to=google"], "--input is missing"),
        (["--input=x", "--output=y", "--to=onnx"], "bert_jax, huggingface, google"),
    ):
        assert words in command("convert", *arguments)


def test_a_truncated_file_leaves_no_output(huggingface, tmp_path):
    path = huggingface / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="model.safetensors is damaged"):
        convert.convert(str(huggingface), str(tmp_path / "out"), "google")
    assert not list(tmp_path.glob("out*"))
