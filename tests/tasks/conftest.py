"""Fixtures of the task tests."""

import json

import pytest

from benchmarks.golden.squad import VOCABULARY
from bert_jax import tokenizers
from bert_jax.config import finetune_config
from bert_jax.tasks import make_task


def open_task(name, source, tokenizer, *, max_seq_length=16, bad_rows="refuse", **options):
    """Makes a task with the default options of its config, some of which `options` replaces."""
    config = finetune_config(name)
    config.data.update(max_seq_length=max_seq_length, bad_rows=bad_rows)
    if options:
        config[name].update(options)
    return make_task(config, str(source), tokenizer)


def both(path):
    """Returns a `data.input` that uses one file for training and validation."""
    return f"train={path},validation={path}"


@pytest.fixture(scope="session")
def tokenizer():
    """Returns a WordPiece tokenizer trained on the built-in corpus."""
    return tokenizers.from_file(
        "wordpiece", VOCABULARY, lowercase=True, max_input_chars_per_word=200
    )


@pytest.fixture(scope="session")
def real_tokenizer(shared_data):
    """Returns a function that makes the tokenizer of a released BERT."""

    def make(name):
        return tokenizers.from_file(
            "wordpiece",
            shared_data / "vocab" / name / "vocab.txt",
            lowercase="uncased" in name,
            max_input_chars_per_word=200,
        )

    return make


@pytest.fixture
def write(tmp_path):
    """Returns `write`, which writes {name: text, bytes, object, or list of JSON lines}."""

    def write(files, folder="."):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            if isinstance(content, dict):
                content = json.dumps(content)
            elif isinstance(content, list):
                lines = (line if isinstance(line, str) else json.dumps(line) for line in content)
                content = "".join(f"{line}\n" for line in lines)
            content = content if isinstance(content, bytes) else content.encode()
            (tmp_path / folder / name).write_bytes(content)
        return str(tmp_path / folder)

    return write
