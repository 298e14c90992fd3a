"""A variant of BERT defined outside the package, used with every command.

The variant detects swapped neighbors: its corruption swaps some tokens with their successors,
and its term predicts which positions were swapped and whether the row is long. No module of
bert_jax refers to it.
"""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax import benchmark
from bert_jax.base import parts
from bert_jax.base.batch import BatchField
from bert_jax.batches.random_keys import draw_rows
from bert_jax.batches.rows.segments import SegmentRows
from bert_jax.commands.evaluate import evaluate_workdir
from bert_jax.config import default_config, stage
from bert_jax.convert import convert
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.family import Names, PreTrainingClass
from bert_jax.models.heads import OutputLayer
from bert_jax.objectives.term import Metric, Term, example_weights
from bert_jax.pretraining import evaluation
from bert_jax.pretraining.build import make_objective
from bert_jax.training.metrics import read_metrics
from tests import runs

SELF = "tests.test_new_variant"
LENGTH = 16


class LabelledRows(SegmentRows):
    """Single segments, with a label for rows that are more than half full."""

    fields = {**SegmentRows.fields, "is_long": BatchField("B", "int32", high=2)}

    def assemble(self, plan):
        batch = super().assemble(plan)
        is_long_B = batch["attention_mask"].sum(axis=1) > self.spec.max_seq_length // 2
        return batch | {"is_long": is_long_B.astype(np.int32)}


class SwappedNeighbours:
    """Swaps a fifth of the tokens at even positions with their successors."""

    fields = {"swapped": BatchField("BL", "int32", high=2)}

    def __init__(self, tokenizer, spec, store):
        self._specials = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id]

    def corrupt(self, batch, key, first_example):
        ids_BxL = batch["input_ids"]
        num_rows, length = ids_BxL.shape
        bits_BxP = draw_rows(key, first_example, num_rows, length // 2)
        pairs_BxPx2 = ids_BxL[:, : length // 2 * 2].reshape(num_rows, -1, 2)
        is_text_BxP = ~np.isin(pairs_BxPx2, self._specials).any(axis=2)
        swapped_BxP = is_text_BxP & (bits_BxP % 5 == 0)
        swapped_BxL = np.repeat(swapped_BxP, 2, axis=1)
        partner_BxL = pairs_BxPx2[:, :, ::-1].reshape(num_rows, -1)
        return {
            "input_ids": np.where(swapped_BxL, partner_BxL, ids_BxL).astype(np.int32),
            "swapped": swapped_BxL.astype(np.int32),
        }


@dataclasses.dataclass(frozen=True)
class SwappedToken(Term):
    """Predicts which positions were swapped, and whether the row is long."""

    name = "swap"
    label = "swapped token"
    fields = {**SwappedNeighbours.fields, "is_long": LabelledRows.fields["is_long"]}
    metrics = (
        Metric("swap_loss", "swap loss (nats)", "loss"),
        Metric(
            "swap_accuracy",
            "swap accuracy",
            "accuracy",
            baseline="majority_swap_accuracy",
            baseline_label="the more common label",
            in_progress=True,
        ),
    )
    needs_pooler = True

    def heads(self, config):
        return {"swap": OutputLayer(config, 2), "long": OutputLayer(config, 2)}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        return model.swap(hidden_BxLxD), model.long(pooled_BxD)

    def total(self, batch):
        return jnp.sum(batch["attention_mask"])

    def sums(self, outputs, batch, frozen=None):
        logits_BxLx2, long_logits_Bx2 = outputs
        rows = example_weights(batch)
        weights_BxL = batch["attention_mask"] * rows[:, None]
        losses_BxL = _cross_entropy(logits_BxLx2, batch["swapped"])
        long_losses_B = _cross_entropy(long_logits_Bx2, batch["is_long"])
        correct_BxL = jnp.argmax(logits_BxLx2, axis=-1) == batch["swapped"]
        loss = jnp.sum(weights_BxL * losses_BxL) + jnp.sum(rows * long_losses_B)
        weight = jnp.sum(weights_BxL)
        return {
            "swap_loss": (loss, weight),
            "swap_accuracy": (jnp.sum(weights_BxL * correct_BxL), weight),
            "swapped": (jnp.sum(weights_BxL * batch["swapped"]), weight),
        }

    def results(self, sums):
        results = super().results(sums)
        share = results["swapped"]
        return results | {"majority_swap_accuracy": max(share, 1 - share)}

    def head_flops(self, config, length, num_predictions):
        return 2 * 2 * config.hidden_size * (length + 1)


def _cross_entropy(logits, labels):
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]


_OUTPUT = """
classes dense/kernel weight
vector dense/bias bias
"""
FAMILY = dataclasses.replace(
    BERT,
    title="Swap detector",
    model_types=("swap_detector",),
    names=(
        *BERT.names,
        Names("swap/", "swap_head.", _OUTPUT),
        Names("long/", "long_head.", _OUTPUT),
    ),
    pretraining_classes=(
        PreTrainingClass(
            "SwapDetector", terms=(f"{SELF}:SwappedToken",), weights=("bert/", "swap/", "long/")
        ),
    ),
)


def get_config(arg=""):
    """Returns the config of the variant; this file is passed as --config."""
    c = default_config()
    c.dtype = "float32"
    c.family = f"{SELF}:FAMILY"
    c.objective.terms = (f"{SELF}:SwappedToken",)
    c.objective.weights = (1.0,)
    c.data.rows = f"{SELF}:LabelledRows"
    c.data.corruption = f"{SELF}:SwappedNeighbours"
    c.data.num_processes = 1
    c.data.heldout_fraction = 0.2
    c.model.update(
        vocab_size=600,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
    )
    c.train.num_steps = 30
    c.train.batch_size = 8
    c.train.stages = (stage(fraction=1.0, max_seq_length=LENGTH, max_predictions_per_seq=1),)
    c.schedule.peak_learning_rate = 3e-3
    c.schedule.warmup_steps = 3.0
    c.checkpoint.every_steps = 5
    c.eval.every_steps = 10
    c.eval.max_sequences = 64
    c.log.every_steps = 1
    return c.lock()


@pytest.fixture(scope="module", autouse=True)
def trusted():
    """Trusts the parts in this process; the command gets their names from --config."""
    parts.trust(get_config())


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return runs.write_speeches(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, texts):
    """Returns the directory and the output of a finished run of the command."""
    workdir = tmp_path_factory.mktemp("variant") / "run"
    command = [sys.executable, "-m", "bert_jax.main", f"--config={__file__}"]
    command += [f"--workdir={workdir}", f"--config.data.input={texts}"]
    # The rows of the variant hold 16 tokens of longer sentences, which the flag accepts.
    command += ["--config.data.max_sentence_tokens=128"]
    return workdir, runs.succeed(command)


def test_training_reports_the_variants_metrics(finished):
    workdir, printed = finished
    assert "swap accuracy" in printed and "swapped token: " in printed
    lines = read_metrics(workdir)
    assert {"loss", "swap_loss", "swap_accuracy"} <= lines[0].keys()
    assert not any("mlm" in name or "nsp" in name for line in lines for name in line)
    held_out = [line["eval_swap_loss"] for line in lines if "eval_swap_loss" in line]
    assert len(held_out) == 3 and held_out[-1] < 0.8 * lines[0]["swap_loss"]
    results = json.loads((workdir / "results.json").read_text())
    assert results["step"] == 30 and 0.5 < results["majority_swap_accuracy"] <= 1
    assert (workdir / "curves.png").stat().st_size > 0


def test_evaluate_and_benchmark_support_the_variant(finished):
    workdir, _ = finished
    results = evaluate_workdir(workdir)
    text = evaluation.progress_text(make_objective(get_config()).metrics, results)
    assert "swap accuracy" in text and "masked" not in text
    assert np.isfinite(benchmark.benchmark_step(get_config(), 1, 2)["loss"])


def test_export_and_import_use_the_variants_family(finished, tmp_path):
    exported, native, again = (tmp_path / name for name in ("hf", "native", "again"))
    convert(str(finished[0]), str(exported), "huggingface")
    config = json.loads((exported / "config.json").read_text())
    assert config["model_type"] == "swap_detector" and config["architectures"] == ["SwapDetector"]
    tensors = load_file(exported / "model.safetensors")
    assert tensors["swap_head.weight"].shape == (2, 32)
    assert "swap accuracy" in (exported / "README.md").read_text()
    family = f"{SELF}:FAMILY"
    convert(str(exported), str(native), "bert_jax", family=family)
    convert(str(native), str(again), "huggingface", family=family)
    for name, value in load_file(again / "model.safetensors").items():
        np.testing.assert_array_equal(value, tensors[name])
