"""Stored JSON files of another shape give one sentence, or are written again."""

import json
import shutil

import pytest

import bert_jax
from bert_jax import convert
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.pretraining import train as pretrain
from bert_jax.training import workdir
from tests.small_run import compiled_once, small_run  # noqa: F401

EXAMPLE = {"step": 0, "loss": 0.5, "name?": "", "rows": [{"text": ""}], "is_new?": True}
RIGHT = {"step": 3, "loss": 1, "name": None, "rows": [], "other": [1]}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"rows": [{"text": "a"}, {"text": "b", "more": 1}], "name": "x", "is_new": False}, ""),
        ({"step": 3.0}, "its content.step should be a whole number"),
        ({"step": True}, "its content.step should be a whole number"),
        ({"loss": "1"}, "its content.loss should be a number"),
        ({"loss": None}, "its content has no loss"),
        ({"name": 3}, "its content.name should be a text"),
        ({"is_new": 1}, "its content.is_new should be true or false"),
        ({"rows": {}}, "its content.rows should be a list"),
        ({"rows": [{"text": "a"}, 5]}, "its content.rows[1] should be a JSON object"),
        ({"rows": [{}]}, "its content.rows[0] has no text"),
    ],
)
def test_a_value_is_compared_with_an_example(changes, problem):
    assert files.mismatch(RIGHT | changes, EXAMPLE) == problem


@pytest.fixture(scope="module")
def folder(texts, tmp_path_factory):
    """Returns a folder with a finished run and its export."""
    folder = tmp_path_factory.mktemp("stored")
    pretrain.train(small_run(texts, eval__every_steps=2), folder / "run")
    convert.convert(str(folder / "run"), str(folder / "hf"), "huggingface")
    return folder


def resume(directory):
    pretrain.train(workdir.load_config(directory), directory)


OPENS = {"load": bert_jax.load, "resume": resume}


@pytest.mark.parametrize(
    ("opens", "name", "changes"),
    [
        ("resume", "run/data/metadata.json", {"vocab_size": "many"}),
        ("resume", "run/data/metadata.json", {"splits": []}),
        ("load", "run/tokenizer/bert_jax_tokenizer.json", {"kind": ["wordpiece"]}),
        ("load", "run/tokenizer/bert_jax_tokenizer.json", {"max_input_chars_per_word": None}),
        ("load", "run/tokenizer/bert_jax_tokenizer.json", {"special_tokens": 5}),
        ("load", "hf/config.json", {"architectures": 5}),
        ("load", "hf/config.json", {"model_type": ["bert"]}),
        ("load", "hf/tokenizer_config.json", {"tokenizer_class": 5}),
    ],
)
def test_a_file_of_another_shape_is_refused(opens, name, changes, folder, tmp_path):
    directory, file = name.split("/", 1)
    shutil.copytree(folder / directory, tmp_path / "copy")
    path = tmp_path / "copy" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError) as refused:
        OPENS[opens](tmp_path / "copy")
    assert "\n" not in str(refused.value) and str(tmp_path / "copy") in str(refused.value)
