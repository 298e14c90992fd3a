"""A small HerBERT is trained on whole words and the order of segments, resumed and exported."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import bert_jax
from bert_jax.convert import convert
from configs import herbert
from tests import runs
from tests.small_run import small_run, train_with_interruption


def run_config(texts):
    return small_run(texts, herbert.get_config("tiny"), **{"model.vocab_size": 300})


@pytest.fixture(scope="module")
def finished(tmp_path_factory, texts):
    """Returns the work directory of a finished run."""
    directory = tmp_path_factory.mktemp("herbert") / "run"
    results = bert_jax.train(run_config(texts), directory)
    assert results["step"] == 6 and {"mlm_loss", "sso_loss"} <= results.keys()
    return directory


def test_an_interrupted_run_is_bit_identical(texts, finished, tmp_path):
    train_with_interruption(run_config(texts), tmp_path / "resumed", 5)
    runs.assert_same_bits(runs.final_state(tmp_path / "resumed"), runs.final_state(finished))


def test_an_export_is_a_released_directory(finished, tmp_path):
    convert(str(finished), str(tmp_path / "hf"), "huggingface")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["BertForMaskedLM"], "bert")
    assert config["pad_token_id"] == 1
    tokenizer = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "HerbertTokenizer"
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    assert {"bert.pooler.dense.weight", "cls.sso.sso_relationship.bias"} <= tensors.keys()
    for name in ("bert_jax_tokenizer.json", "bert_jax_training.json"):
        (tmp_path / "hf" / name).unlink()
    ours, theirs = (bert_jax.load(str(path)) for path in (finished, tmp_path / "hf"))
    text = "The quick brown <mask> jumps."
    assert ours.fill_mask(text) == theirs.fill_mask(text)
    np.testing.assert_array_equal(ours.encode(["The dog."]), theirs.encode(["The dog."]))
