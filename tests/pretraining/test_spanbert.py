"""A small SpanBERT is trained, stopped, resumed, evaluated, exported and fine-tuned."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import bert_jax
from bert_jax import benchmark, convert
from bert_jax.base.errors import UserError
from bert_jax.finetuning.run import finetune
from bert_jax.interop import formats
from bert_jax.pretraining import evaluation
from bert_jax.pretraining import train as pretrain
from bert_jax.pretraining.build import make_trainer
from bert_jax.training.metrics import read_metrics
from configs import spanbert
from tests import runs
from tests.finetuning import small
from tests.small_run import small_run, train_with_interruption


def own_config(texts):
    return small_run(texts, spanbert.get_config("tiny"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, texts):
    directory = tmp_path_factory.mktemp("run") / "run"
    pretrain.train(own_config(texts), directory)
    return directory


def test_max_predictions_suffice_in_every_config():
    for size in spanbert.SIZES:
        for stage in spanbert.get_config(size).train.stages:
            assert stage.max_predictions_per_seq == np.ceil(0.15 * (stage.max_seq_length - 2))


def test_training_reports_both_losses(finished):
    line = read_metrics(finished)[0]
    assert line["loss"] == pytest.approx(line["mlm_loss"] + line["sbo_loss"], rel=1e-6)
    results = evaluation.evaluate_workdir(finished)
    assert results["sbo_perplexity"] > 1 and results["unigram_sbo_loss"] > 0
    assert "nsp_loss" not in line and "nsp_loss" not in results


@pytest.mark.slow
def test_interrupted_run_is_bit_identical(finished, texts, tmp_path):
    train_with_interruption(own_config(texts), tmp_path, 5)
    runs.assert_same_bits(runs.final_state(tmp_path), runs.final_state(finished))


def test_an_export_is_a_bert_without_the_boundary_head(finished, tmp_path):
    warnings = convert.convert(str(finished), str(tmp_path / "hf"), "huggingface")
    assert any("no tensor for" in w and "sbo/transform/kernel" in w for w in warnings)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"] and config["model_type"] == "bert"
    assert "# SpanBERT, L1 H16" in (tmp_path / "hf" / "README.md").read_text()
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    assert len(tensors) == 5 + 16 + 5
    weights = formats.read(finished).weights
    for name, value in formats.read(tmp_path / "hf").weights.items():
        np.testing.assert_array_equal(weights[name], value)


def test_a_native_copy_keeps_the_boundary_head(finished, tmp_path):
    assert not convert.convert(str(finished), str(tmp_path / "copy"), "bert_jax")
    copy, weights = formats.read(tmp_path / "copy").weights, formats.read(finished).weights
    assert copy.keys() == weights.keys() and "sbo/decoder/output_bias" in copy
    for name, value in weights.items():
        np.testing.assert_array_equal(copy[name], value)


@pytest.mark.slow
def test_fill_mask_and_fine_tuning(finished, tmp_path):
    fillings = bert_jax.load(str(finished)).fill_mask("the [MASK] of all")
    assert len(fillings) > 0
    small.write_rows(tmp_path / "rows", train=32, validation=8)
    sizes = {"train__num_epochs": 1.0, "data__max_seq_length": 12}
    results = finetune(small.config(finished, tmp_path / "rows", **sizes), tmp_path / "tuned")
    assert results["step"] == 4


def test_flops_include_both_heads(texts):
    trainer = make_trainer(own_config(texts))
    width, inner, vocabulary, length, predictions = 16, 16, 200, 16, 4
    block = 2 * length * (4 * width**2 + 2 * width * inner) + 4 * length**2 * width
    mlm = 2 * predictions * (width**2 + width * vocabulary)
    sbo = 2 * predictions * ((2 * width + 200) * width + width**2 + width * vocabulary)
    assert trainer.flops_per_sequence(trainer.stages[0]) == 3 * (block + mlm + sbo)
    assert np.isfinite(benchmark.benchmark_step(own_config(texts), 1, 2)["loss"])


def test_the_boundary_term_needs_spans(texts, tmp_path):
    config = own_config(texts)
    config.data.corruption = "masked_lm"
    with pytest.raises(UserError, match="span_boundary, which needs span_left_positions"):
        pretrain.train(config, tmp_path)
