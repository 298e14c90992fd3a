"""Both objectives against plain numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.objectives.mlm import DENOMINATOR_EPSILON, mlm_sums
from bert_jax.objectives.nsp import nsp_sums


def cross_entropy(logits, label):
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max()
    return np.log(np.exp(shifted).sum()) - shifted[label]


@pytest.fixture
def mlm_inputs():
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((4, 5, 17))).astype(np.float32)
    labels = rng.integers(0, 17, (4, 5)).astype(np.int32)
    labels[0, :3] = logits[0, :3].argmax(-1)  # some are right
    weights = (rng.random((4, 5)) < 0.7).astype(np.float32)
    weights[0, :2], weights[0, 2] = 1, 0
    return logits, labels, weights


def test_mlm_sums_against_numpy(mlm_inputs):
    logits, labels, weights = mlm_inputs
    loss = correct = 0.0
    for b in range(4):
        for m in range(5):
            if weights[b, m]:
                loss += cross_entropy(logits[b, m], labels[b, m])
                correct += logits[b, m].argmax() == labels[b, m]
    sums = mlm_sums(*mlm_inputs)
    assert 2 <= correct < weights.sum() < 20
    np.testing.assert_allclose(sums["loss"], loss, rtol=1e-6)
    assert sums["correct"] == correct
    assert sums["weight"] == weights.sum()
    assert {value.dtype for value in sums.values()} == {jnp.dtype("float32")}


def test_mlm_padding_slots_count_for_nothing(mlm_inputs):
    logits, labels, weights = mlm_inputs
    padding = weights == 0
    changed = mlm_sums(
        np.where(padding[..., None], 50.0, logits), np.where(padding, 3, labels), weights
    )
    for name, value in mlm_sums(*mlm_inputs).items():
        np.testing.assert_array_equal(changed[name], value)


def test_mlm_gradient_is_weighted_softmax_minus_one_hot(mlm_inputs):
    logits, labels, weights = mlm_inputs
    gradient = jax.grad(lambda x: mlm_sums(x, labels, weights)["loss"])(logits)
    exact = np.exp(np.asarray(logits, np.float64))
    exact = exact / exact.sum(-1, keepdims=True) - np.eye(17)[labels]
    np.testing.assert_allclose(gradient, exact * weights[..., None], atol=1e-6)


def test_mlm_of_no_masked_token_is_zero_and_its_mean_finite(mlm_inputs):
    logits, labels, weights = mlm_inputs

    def mean(x):
        sums = mlm_sums(x, labels, 0 * weights)
        return sums["loss"] / (sums["weight"] + DENOMINATOR_EPSILON)

    loss, gradient = jax.value_and_grad(mean)(logits)
    assert loss == 0 and not np.any(gradient)


def test_denominator_is_that_of_run_pretraining():
    assert DENOMINATOR_EPSILON == 1e-5


def test_mlm_survives_large_logits():
    logits = jnp.full((1, 1, 3), 1e4).at[0, 0, 1].set(-1e4)
    sums = mlm_sums(logits, jnp.array([[1]]), jnp.ones((1, 1)))
    np.testing.assert_allclose(sums["loss"], 2e4 + np.log(2), rtol=1e-6)


def test_nsp_sums_against_numpy():
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((9, 2)).astype(np.float32)
    labels = rng.integers(0, 2, 9).astype(np.int32)
    weights = np.array([1, 1, 1, 1, 1, 1, 0, 0, 1], np.float32)
    real = [i for i in range(9) if weights[i]]
    sums = nsp_sums(logits, labels, weights)
    np.testing.assert_allclose(
        sums["loss"], sum(cross_entropy(logits[i], labels[i]) for i in real), rtol=1e-6
    )
    assert sums["correct"] == sum(logits[i].argmax() == labels[i] for i in real)
    assert 0 < sums["correct"] < 7
    assert sums["weight"] == 7
    assert nsp_sums(logits, labels, 0 * weights)["loss"] == 0
