"""The loss of masked diffusion against references, and its bound for models that are known."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.base.batch import HELD_OUT_RATES
from bert_jax.batches.evaluation_batches import evaluation_batches
from bert_jax.models.heads import NO_PROBABILITY
from bert_jax.models.input_embeddings import vocabulary_logits
from bert_jax.objectives.cross_entropy import DecoderInputs
from bert_jax.objectives.terms.diffusion import MaskedDiffusion
from tests.batches.fakes import NUM_SPECIALS, FakeStore, make_tokenizer
from tests.batches.small_stream import DOCUMENTS, SPEC
from tests.objectives.common import decoder

MASK = 10
TERM = MaskedDiffusion()


def make_batch(rows=3, length=37, seed=2):
    rng = np.random.default_rng(seed)
    original = rng.integers(0, MASK, (rows, length)).astype(np.int32)
    rate = rng.uniform(0.2, 1, (rows, 1))
    may = np.arange(length) >= 5
    masked = may & (rng.random((rows, length)) < rate)
    return {
        "input_ids": np.where(masked, MASK, original),
        "original_ids": original,
        "mask_weights": (may / rate).astype(np.float32),
        "attention_mask": np.ones_like(original),
    }


def loss_of(inputs, batch):
    return TERM.sums(inputs, batch)["diffusion_loss"][0] / TERM.total(batch)


def test_loss_and_gradient_against_numpy():
    inputs, batch = decoder(7, seed=1), make_batch()
    logits = np.asarray(vocabulary_logits(*inputs), np.float64)
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    targets = np.eye(16)[batch["original_ids"]]
    is_masked = batch["input_ids"] == MASK
    weights = is_masked * batch["mask_weights"].astype(np.float64) / (3 * 32)
    expected = -(weights * np.log((probabilities * targets).sum(-1))).sum()
    loss, gradient = jax.value_and_grad(loss_of)(inputs, batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    of_logits = weights[..., None] * (probabilities - targets)
    np.testing.assert_allclose(gradient.bias_W, of_logits.sum((0, 1)), atol=1e-6)
    of_hidden = of_logits @ np.asarray(inputs.table_WxE, np.float64)
    np.testing.assert_allclose(gradient.hidden_BxLxE, of_hidden, atol=1e-6)


@pytest.mark.outside
def test_loss_and_gradient_against_torch():
    """The loss is written as in the guidelines of LLaDA's authors, for the same masks."""
    torch = pytest.importorskip("torch")
    inputs, batch = decoder(7, seed=3), make_batch(seed=4)
    hidden, table, bias = (torch.tensor(np.asarray(x), requires_grad=True) for x in inputs)
    logits = hidden @ table.T + bias
    masked = torch.tensor(batch["input_ids"] == MASK)
    p_mask = 1 / torch.tensor(batch["mask_weights"])[masked]
    labels = torch.tensor(batch["original_ids"]).long()
    token_loss = torch.nn.functional.cross_entropy(logits[masked], labels[masked], reduction="none")
    expected = (token_loss / p_mask).sum() / (3 * 32)
    expected.backward()
    loss, gradient = jax.value_and_grad(loss_of)(inputs, batch)
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-6)
    for ours, theirs in zip(gradient, (hidden, table, bias), strict=True):
        np.testing.assert_allclose(ours, theirs.grad.numpy(), atol=2e-6)


# A text of 60 kinds of tokens, which are not equally frequent.
VOCABULARY, PADDED = 65, 128
TOKENIZER = make_tokenizer(VOCABULARY)
STORE = FakeStore(DOCUMENTS)
STORE.tokens = NUM_SPECIALS + (60 * np.random.default_rng(5).beta(1, 4, STORE.num_tokens)).astype(
    np.int64
)


@jax.jit
def sums_of(batch, log_probs_V):
    """Returns the sums of a model that predicts the same probabilities everywhere."""
    bias = jnp.full(PADDED, NO_PROBABILITY).at[:VOCABULARY].set(log_probs_V)
    hidden = jnp.zeros((*batch["input_ids"].shape, 4))
    inputs = DecoderInputs(hidden, jnp.zeros((PADDED, 4)), bias)
    return TERM.sums(inputs, batch) | TERM.baseline_sums(batch, log_probs_V)


def evaluated(log_probs_V, seed=0):
    """Returns the results of such a model, its true loss of a token, and the number of tokens."""
    spec = dataclasses.replace(
        SPEC,
        corruption="diffusion",
        rows="full_sentences",
        max_seq_length=48,
        seed=seed,
        batch_size=128,
    )
    totals, loss, tokens = {}, 0.0, 0.0
    for batch in evaluation_batches(STORE, TOKENIZER, spec, keeps_size=True):
        sums = jax.tree.map(float, jax.device_get(sums_of(batch, log_probs_V)))
        totals = jax.tree.map(lambda x, y: x + y, totals, sums) if totals else sums
        counted = (batch["mask_weights"] > 0) * batch["example_weights"][:, None]
        loss -= (counted * log_probs_V[batch["original_ids"]]).sum()
        tokens += counted.sum()
    assert totals["diffusion_loss"][1] == pytest.approx(tokens, rel=1e-6)
    return TERM.results(totals), loss / tokens, tokens


def test_the_bound_of_the_uniform_distribution_is_exact():
    exact = math.log(VOCABULARY)
    results, loss, tokens = evaluated(np.full(VOCABULARY, -exact, np.float32))
    assert results["diffusion_loss"] == pytest.approx(exact, rel=1e-5) == loss
    assert results["diffusion_perplexity"] == pytest.approx(VOCABULARY, rel=1e-4)
    assert results["diffusion_standard_error"] < 2e-3
    for i in range(HELD_OUT_RATES):
        name = f"diffusion_loss_rate_{i + 1}_of_{HELD_OUT_RATES}"
        assert results[name] == pytest.approx(exact, rel=1e-5)
    # Each token of the text counts once, whatever the number of rates, and each [SEP].
    assert 0.9 * STORE.num_tokens < tokens < 1.2 * STORE.num_tokens


def test_the_bound_of_unigram_frequencies_is_exact_within_its_standard_error():
    counts = np.bincount(STORE.tokens, minlength=VOCABULARY) + 1.0
    log_probs = np.log(counts / counts.sum()).astype(np.float32)
    errors = []
    for seed in range(4):
        results, exact, _ = evaluated(log_probs, seed)
        errors.append((results["diffusion_loss"] - exact) / results["diffusion_standard_error"])
        assert 0 < results["diffusion_standard_error"] < 0.05
        # The baseline knows how often [SEP] occurs; these probabilities do not.
        assert 0.3 * exact < results["unigram_diffusion_loss"] < exact
    assert np.abs(errors).max() < 3 and np.abs(errors).min() < 1
