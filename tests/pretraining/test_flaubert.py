"""A small FlauBERT with every command: it is trained, resumed, exported, fine-tuned and used."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import bert_jax
from bert_jax.convert import convert
from bert_jax.pretraining import evaluation
from bert_jax.pretraining.build import make_trainer
from bert_jax.training.metrics import read_metrics
from configs import flaubert
from tests import runs
from tests.finetuning import small
from tests.parallel.fakes import slices
from tests.small_run import small_run, train_with_interruption

pytest.importorskip("sacremoses")


def run_config(texts, **overrides):
    sizes = {"model.vocab_size": 300, "model.intermediate_size": 64}
    overrides = sizes | {"schedule.warmup_steps": 100.0} | overrides
    return small_run(texts, flaubert.get_config("tiny"), **overrides)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, texts):
    """Returns the work directory of a finished run."""
    directory = tmp_path_factory.mktemp("flaubert") / "run"
    assert bert_jax.train(run_config(texts), directory)["step"] == 6
    return directory


@pytest.fixture(scope="module")
def exported(finished):
    convert(str(finished), str(finished / "hf"), "huggingface")
    return finished / "hf"


def test_the_head_is_the_decoder_alone(finished, exported):
    assert evaluation.evaluate_workdir(finished)["mlm_perplexity"] > 1
    tensors = load_file(exported / "model.safetensors")
    assert [name for name in tensors if not name.startswith("transformer.")] == [
        "pred_layer.proj.bias"
    ]
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == ["FlaubertWithLMHeadModel"] and config["mask_index"] == 5
    tokenizer = json.loads((exported / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "FlaubertTokenizer"
    assert tokenizer["do_lowercase"] is False and tokenizer["mask_token"] == "<special1>"


def test_the_rate_is_that_of_xlm(finished):
    """The warm-up of 100 steps begins at 1e-7."""
    rates = [line["learning_rate"] for line in read_metrics(finished) if "learning_rate" in line]
    np.testing.assert_allclose(rates, 1e-7 + (1e-3 - 1e-7) * np.arange(6) / 100, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_interrupted_run_is_bit_identical(texts, tmp_path, norm):
    config = run_config(texts, model__norm=norm)
    bert_jax.train(config, tmp_path / "whole")
    train_with_interruption(run_config(texts, model__norm=norm), tmp_path / "resumed", 5)
    states = (runs.final_state(tmp_path / name) for name in ("resumed", "whole"))
    runs.assert_same_bits(*states)


def test_fill_mask_and_score(exported):
    bert = bert_jax.load(str(exported))
    ((first, *_),) = bert.fill_mask("The quick brown <special1> jumps.", top_k=3)
    assert 0 < first.probability < 1
    assert bert.score("The dog.").perplexity > 1
    view = bert.attention("The dog", "A fox")
    assert view.tokens[0] == "<s>" and view.tokens.count("</s>") == 2
    assert bert.encode(["The dog."]).shape == (1, 16)


@pytest.mark.slow
def test_pairs_are_classified(exported, tmp_path):
    small.check_classified_pairs(exported, tmp_path, "FlaubertForSequenceClassification")


@pytest.mark.parametrize(("size", "parameters"), [("base", 138_301_817), ("large", 373_282_937)])
def test_sizes_are_those_of_transformers(size, parameters):
    """FlaubertWithLMHeadModel with the authors' 68,729 entries; their README has 138 and 373 M."""
    trainer = make_trainer(flaubert.get_config(size), slices(rows=1))
    assert trainer.num_parameters() == parameters
