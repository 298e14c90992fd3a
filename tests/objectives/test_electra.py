"""ELECTRA's terms: replacement, counting, and the flow of gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.config import validate
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.objective import apply
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.weighted import WeightedTerms
from bert_jax.pretraining.build import make_trainer
from tests.models.common import PLAIN
from tests.objectives.common import GivenSamples
from tests.small import flat, random_batch, random_params, small_config

NAMES = ("generator", "replaced_token")
# The generator is 9 wide.
CONFIG = dataclasses.replace(
    PLAIN, vocab_size=98, num_hidden_layers=1, embedding_size=14, generator_size=3 / 7
)
ELECTRA = {
    "objective.terms": NAMES,
    "objective.weights": (1.0, 50.0),
    "model.generator_size": 0.5,
    "data.rows": "halves",
    "data.corruption": "electra",
}
BATCH = random_batch(3)


@pytest.fixture(scope="module")
def electra():
    model = PreTrainingModel(CONFIG, make_terms(NAMES))
    return model, random_params(model, 1)


def test_samples_replace_tokens_and_equal_samples_count_as_real(electra):
    _, params = electra
    model = PreTrainingModel(CONFIG, (GivenSamples(), *make_terms(NAMES[1:])))
    rng = np.random.default_rng(0)
    real = BATCH["masked_lm_weights"] > 0
    samples = rng.integers(1, 98, real.shape).astype(np.int32)
    # Every second sample is the original token.
    samples[:, ::2] = BATCH["masked_lm_ids"][:, ::2]
    outputs = jax.jit(functools.partial(apply, model))(params, BATCH | {"samples": samples})
    logits, is_replaced = outputs["rtd"]
    expected_ids, expected = BATCH["input_ids"].copy(), np.zeros_like(is_replaced)
    for row, at in np.argwhere(real):
        column = BATCH["masked_lm_positions"][row, at]
        expected_ids[row, column] = samples[row, at]
        expected[row, column] = samples[row, at] != BATCH["masked_lm_ids"][row, at]
    np.testing.assert_array_equal(is_replaced, expected)
    assert 0 < expected.sum() < real.sum()
    # The discriminator applied directly to the row that it should read.
    alone = PreTrainingModel(CONFIG, make_terms(NAMES[1:]))
    outputs = jax.jit(functools.partial(apply, alone))(params, BATCH | {"input_ids": expected_ids})
    read = outputs["rtd"][0]
    np.testing.assert_allclose(logits, read, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_samples_depend_on_the_key(electra):
    model, params = electra

    @jax.jit
    def logits(seed):
        rngs = {"sample": jax.random.key(seed), "dropout": jax.random.key(0)}
        return apply(model, params, BATCH, rngs)["rtd"][0]

    one, other = logits(1), logits(2)
    assert (one == logits(1)).all() and (one != other).any()


def test_no_gradient_goes_through_the_samples(electra):
    model, params = electra

    @jax.jit
    @jax.grad
    def gradients(params, *weights):
        terms = WeightedTerms(model.terms, weights)
        batch = jax.tree.map(jnp.asarray, BATCH)
        rngs = {"sample": jax.random.key(5), "dropout": jax.random.key(6)}
        return terms.loss(model, params, batch, rngs, terms.totals(batch), {}, 0)[0]

    detection, masked = (flat(gradients(params, *w)) for w in ((0.0, 50.0), (1.0, 0.0)))
    shared = {name for name in detection if name.startswith("bert/embeddings/")}
    for name in detection:
        of_generator = name.startswith("generator/")
        assert detection[name].any() != of_generator, name
        assert masked[name].any() == (of_generator or name in shared), name


def test_detection_is_counted_over_all_real_tokens(electra):
    model, params = electra
    example_weights = (np.arange(16) < 13).astype(np.float32)
    batch = jax.tree.map(jnp.asarray, BATCH | {"example_weights": example_weights})
    objective = WeightedTerms(model.terms, (1.0, 50.0))
    log_probs = jnp.full(98, -np.log(98.0))
    evaluate = jax.jit(lambda params: objective.evaluate(model, params, batch, {}, log_probs)[0])
    sums = evaluate(params)
    sums = jax.tree.map(float, sums)
    results = objective.results(sums)

    outputs = jax.jit(functools.partial(apply, model))(params, batch)
    logits, is_replaced = (np.asarray(x, np.float64) for x in outputs["rtd"])
    real = (BATCH["attention_mask"][:13] > 0).ravel()
    logits, truth = logits[:13].ravel()[real], is_replaced[:13].ravel()[real] > 0
    marked, fraction = logits > 0, truth.mean()
    probs = 1 / (1 + np.exp(-logits))
    expected = {
        "rtd_loss": -np.log(np.where(truth, probs, 1 - probs)).mean(),
        "rtd_accuracy": (marked == truth).mean(),
        "rtd_precision": truth[marked].mean(),
        "rtd_recall": marked[truth].mean(),
        "all_real_rtd_accuracy": 1 - fraction,
        "all_replaced_rtd_precision": fraction,
        "constant_rtd_loss": -fraction * np.log(fraction) - (1 - fraction) * np.log(1 - fraction),
    }
    assert real.sum() < real.size and marked.any() and truth.any()
    for name, value in expected.items():
        assert results[name] == pytest.approx(value, rel=1e-4), name
    assert results.keys() >= {"mlm_loss", "unigram_mlm_loss", "mlm_accuracy"}


def test_flops_count_the_generator():
    """Written out for H 24 (F 40) and a generator of H 12 (F 48), 16 tokens, 4 predictions."""
    trainer = make_trainer(small_config(**ELECTRA), jax.devices()[:1])

    def block(width, inner):
        return 2 * 16 * (4 * width**2 + 2 * width * inner) + 4 * 16**2 * width

    projection = 2 * 16 * 24 * 12
    heads = 2 * 4 * (12 * 24 + 24 * 98) + 2 * 16 * 24**2
    expected = 3 * (2 * block(24, 40) + 2 * block(12, 48) + projection + heads)
    assert trainer.flops_per_sequence(trainer.stages[0]) == expected


def test_a_generator_needs_a_width():
    with pytest.raises(UserError, match="generator_size is 0.0: the generator needs"):
        validate(small_config(**ELECTRA | {"model.generator_size": 0.0}))
