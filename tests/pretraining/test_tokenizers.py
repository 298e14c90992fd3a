"""Whole runs on real text with every kind of tokenizer."""

import json
import shutil

import jax
import numpy as np
import pytest

from bert_jax import tokenizers
from bert_jax.pretraining import evaluation
from bert_jax.pretraining import train as pretrain
from bert_jax.text.sources import built_in_files
from tests.small_run import small_run


@pytest.fixture(scope="module")
def speeches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speeches")
    for path in built_in_files()[:12]:
        shutil.copy(path, folder)
    return f"{folder}/*.txt"


KINDS = {
    "unigram": {"tokenizer": "sentencepiece", "sentencepiece_type": "unigram"},
    "bpe": {"tokenizer": "sentencepiece", "sentencepiece_type": "bpe"},
    "cased": {"tokenizer": "wordpiece", "lowercase": False},
    "byte_bpe": {"tokenizer": "byte_bpe", "lowercase": False, "special_tokens": "roberta"},
    "albert": {
        "tokenizer": "sentencepiece",
        "special_tokens": "albert",
        "sentencepiece_rules": "albert",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_trained_on_the_corpus(kind, speeches, tmp_path):
    options = {f"data__{key}": value for key, value in KINDS[kind].items()}
    run = small_run(speeches, data__whole_word_masking=True, model__vocab_size=600, **options)
    results = pretrain.train(run, tmp_path / "run")
    assert results["step"] == 6 and np.isfinite(results["mlm_loss"])
    again = evaluation.evaluate_workdir(tmp_path / "run")
    assert again["mlm_loss"] == pytest.approx(results["mlm_loss"], rel=1e-6)
    tokenizer = tokenizers.load(tmp_path / "run" / "tokenizer")
    assert tokenizer.vocab_size == 600
    (ids,) = tokenizer.encode_batch(["The President of the United States."])
    text = tokenizer.decode(ids)
    expected = "The President of the United States."
    assert text == (expected if kind in ("cased", "byte_bpe") else expected.lower())


@pytest.mark.slow
def test_released_vocabulary(speeches, shared_data, tmp_path):
    vocab = shared_data / "vocab" / "bert-base-uncased" / "vocab.txt"
    if not vocab.exists():
        pytest.skip(f"no vocabulary at {vocab}")
    run = small_run(speeches, data__vocab=str(vocab), model__vocab_size=30522)
    results = pretrain.train(run, tmp_path / "run")
    assert results["mlm_loss"] == pytest.approx(np.log(30522), rel=0.1)
    assert (tmp_path / "run" / "tokenizer" / "vocab.txt").read_bytes() == vocab.read_bytes()
    assert jax.tree.leaves(json.loads((tmp_path / "run" / "results.json").read_text()))
