"""The terms of pre-training against plain numpy, and their weighted sum."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.input_embeddings import vocabulary_logits
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.cross_entropy import SLICE_POSITIONS, DecoderInputs, sliced_cross_entropy
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.terms.denoising import OriginalText
from bert_jax.objectives.terms.masked_lm import MaskedLM
from bert_jax.objectives.terms.next_sentence import NextSentence, SentenceOrder, ThreeWayOrder
from bert_jax.objectives.terms.next_token import NextToken
from bert_jax.objectives.weighted import WeightedTerms
from tests.models.common import PLAIN
from tests.objectives.common import decoder
from tests.small import random_batch, random_params


def cross_entropy(logits, label):
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max()
    return np.log(np.exp(shifted).sum()) - shifted[label]


@pytest.fixture
def masked():
    """Returns logits for 17 tokens, and a batch for which some guesses are right."""
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((4, 5, 17))).astype(np.float32)
    labels = rng.integers(0, 17, (4, 5)).astype(np.int32)
    labels[0, :3] = logits[0, :3].argmax(-1)
    weights = (rng.random((4, 5)) < 0.7).astype(np.float32)
    weights[0, :2], weights[0, 2] = 1, 0
    return logits, {"masked_lm_ids": labels, "masked_lm_weights": weights}


@pytest.mark.parametrize("rows", [None, [1, 0, 1, 0]])
def test_masked_lm_against_numpy(masked, rows):
    """`rows` are the weights that evaluation gives to rows."""
    logits, batch = masked
    if rows:
        batch["example_weights"] = np.array(rows, np.float32)
    weights = batch["masked_lm_weights"] * np.array(rows or [1] * 4)[:, None]
    masked_at = list(zip(*np.nonzero(weights), strict=True))
    labels = batch["masked_lm_ids"]
    sums = MaskedLM().sums(logits, batch)
    loss = sum(cross_entropy(logits[p], labels[p]) for p in masked_at)
    (found, weight), (correct, _) = sums["mlm_loss"], sums["mlm_accuracy"]
    np.testing.assert_allclose(found, loss, rtol=1e-6)
    assert correct == sum(logits[p].argmax() == labels[p] for p in masked_at) >= 2
    assert weight == len(masked_at)
    assert {value.dtype for pair in sums.values() for value in pair} == {jnp.dtype("float32")}
    # As in run_pretraining.py.
    total = batch["masked_lm_weights"].sum() + 1e-5
    np.testing.assert_allclose(MaskedLM().total(batch), total, rtol=1e-6)

    gradient = jax.grad(lambda x: MaskedLM().sums(x, batch)["mlm_loss"][0])(logits)
    probabilities = np.asarray(jax.nn.softmax(logits))
    expected = (probabilities - np.eye(17)[labels]) * weights[..., None]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)

    unigram = np.log(np.random.default_rng(1).dirichlet(np.ones(17))).astype(np.float32)
    baseline = MaskedLM().baseline_sums(batch, unigram)
    loss = -sum(unigram[labels[p]] for p in masked_at)
    np.testing.assert_allclose(baseline["unigram_mlm_loss"], (loss, len(masked_at)), rtol=1e-5)
    assert baseline["unigram_mlm_accuracy"][0] == sum(
        labels[p] == unigram.argmax() for p in masked_at
    )


@pytest.mark.parametrize("term", [NextSentence(), SentenceOrder(), ThreeWayOrder()])
def test_labels_of_pairs_against_numpy(term):
    rng = np.random.default_rng(1)
    num_labels = 3 if term.name == "sso" else 2
    logits = rng.standard_normal((9, num_labels)).astype(np.float32)
    labels = rng.integers(0, num_labels, 9).astype(np.int32)
    weights = np.array([1, 1, 1, 1, 1, 1, 0, 0, 1], np.float32)
    real = np.flatnonzero(weights)
    field = "next_sentence_labels" if term.name == "nsp" else "sentence_order_labels"
    batch = {field: labels, "example_weights": weights}
    assert term.fields[field].high == num_labels
    labels[0] = logits[0].argmax()
    sums = term.sums(logits, batch) | term.baseline_sums(batch, None)
    loss = sum(cross_entropy(logits[i], labels[i]) for i in real)
    (found, weight), (correct, _) = sums[f"{term.name}_loss"], sums[f"{term.name}_accuracy"]
    np.testing.assert_allclose(found, loss, rtol=1e-6)
    assert correct == sum(logits[i].argmax() == labels[i] for i in real)
    assert 0 < correct < 7 == weight
    results = term.results(jax.device_get(sums))
    frequencies = np.bincount(labels[real], minlength=num_labels) / 7
    assert results[f"majority_{term.name}_accuracy"] == pytest.approx(frequencies.max())
    constant = np.mean([-np.log(frequencies[label]) for label in labels[real]])
    assert results[f"constant_{term.name}_loss"] == pytest.approx(constant)
    assert results.keys() >= {metric.name for metric in term.metrics}
    del batch["example_weights"]
    assert term.sums(logits, batch)[f"{term.name}_loss"][1] == term.total(batch) == 9


# Shorter and longer than a slice, and not a multiple of it.
LENGTHS = [SLICE_POSITIONS - 1, 2 * SLICE_POSITIONS + 5]


@pytest.mark.parametrize("length", LENGTHS)
def test_sliced_cross_entropy_matches_the_plain_one(length):
    outputs, rng = decoder(6, 0, length), np.random.default_rng(1)
    targets = rng.integers(0, 11, (3, length)).astype(np.int32)
    weights = rng.integers(0, 3, (3, length)).astype(np.float32)
    weights[0, 0] = 1

    def plain(*outputs):
        log_probs = jax.nn.log_softmax(vocabulary_logits(*outputs))
        losses = -jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
        correct = jnp.argmax(log_probs, axis=-1) == targets
        return jnp.sum(weights * losses), jnp.sum(weights * correct)

    def sliced(*outputs):
        return sliced_cross_entropy(DecoderInputs(*outputs), targets, weights)

    (one, gradients), (other, expected) = (
        jax.jit(jax.value_and_grad(f, (0, 1, 2), has_aux=True))(*outputs) for f in (sliced, plain)
    )
    np.testing.assert_allclose(one, other, rtol=1e-5)
    for gradient, value in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, value, rtol=1e-4, atol=1e-5)
    _, table_gradient, bias_gradient = gradients
    assert not np.any(table_gradient[11:]) and not np.any(bias_gradient[11:])


@pytest.mark.parametrize("term", [NextToken(), OriginalText()], ids=["next_token", "denoising"])
@pytest.mark.parametrize("rows", [None, [1, 0, 1]])
def test_predicted_texts_against_numpy(term, rows):
    outputs, rng = decoder(6, 0, 9), np.random.default_rng(2)
    ids = rng.integers(0, 11, (3, 9)).astype(np.int32)
    lengths = [9, 2, 6]
    mask, shift = (np.arange(9) < np.c_[lengths]).astype(np.int32), int(term.name == "lm")
    batch = {"labels": ids, "decoder_attention_mask": mask}
    if shift:
        batch = {"input_ids": ids, "attention_mask": mask}
    if rows:
        batch["example_weights"] = np.array(rows, np.float32)
    # Tokens that the training text lacks share the lowest probability.
    unigram = np.log([0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 1e-9, 1e-9, 1e-9])
    unigram = unigram.astype(np.float32)

    logits = outputs.hidden_BxLxE @ outputs.table_WxE.T + outputs.bias_W
    loss = correct = weight = unigram_loss = unigram_correct = 0
    for b in range(3):
        for i in range(lengths[b] - shift if not rows or rows[b] else 0):
            label = ids[b, i + shift]
            loss += cross_entropy(logits[b, i], label)
            correct += logits[b, i].argmax() == label
            weight += 1
            unigram_loss -= unigram[label] if label < 8 else 0
            unigram_correct += label == 0
    sums = jax.device_get(term.sums(outputs, batch) | term.baseline_sums(batch, unigram))
    expected = {
        f"{term.name}_loss": loss,
        f"{term.name}_accuracy": correct,
        f"unigram_{term.name}_loss": unigram_loss,
        f"unigram_{term.name}_accuracy": unigram_correct,
    }
    assert sums.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(sums[name], (value, weight), rtol=1e-5)
    np.testing.assert_allclose(term.total(batch), sum(lengths) - 3 * shift, rtol=1e-5)
    results = term.results(sums)
    assert results[f"{term.name}_loss"] == pytest.approx(loss / weight, rel=1e-5)
    perplexity = results[f"{term.name}_perplexity"]
    assert perplexity == pytest.approx(math.exp(loss / weight), rel=1e-5)


def weighted(names, weights, causal=False):
    """Returns the loss, metrics and gradient of a small model with these terms."""
    config = dataclasses.replace(PLAIN, num_hidden_layers=1, causal=causal)
    objective = WeightedTerms(make_terms(names), weights)
    model = PreTrainingModel(config, objective.terms)
    params = random_params(model, seed=1)
    batch = random_batch(2, batch_size=5, length=13, predictions=3, vocab_size=101)

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def run(params):
        rngs = {"dropout": jax.random.key(0), "sample": jax.random.key(1)}
        return objective.loss(model, params, batch, rngs, objective.totals(batch), {}, 0)

    (loss, metrics), gradient = run(params)
    return loss, metrics, gradient


def test_loss_is_the_weighted_sum_and_weight_zero_trains_nothing():
    names = ("masked_lm", "next_sentence")
    loss, metrics, gradient = weighted(names, (2.0, 0.0))
    assert loss == metrics["loss"] == 2 * metrics["mlm_loss"]
    assert metrics.keys() == {"loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}
    assert metrics["nsp_loss"] > 0
    for untrained in (gradient["nsp"], gradient["bert"]["pooler"]):
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(untrained))
    trained = gradient["bert"]["encoder"]["layer_0"]["output"], gradient["mlm"]
    assert all(np.any(leaf) for leaf in jax.tree.leaves(trained))


@pytest.mark.slow
def test_terms_may_share_a_head():
    _, metrics, gradient = weighted(("masked_lm", "next_token"), (0.0, 0.5), causal=True)
    assert metrics["loss"] == pytest.approx(0.5 * metrics["lm_loss"])
    assert 0 < metrics["mlm_loss"] != metrics["lm_loss"]
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient["mlm"]))
