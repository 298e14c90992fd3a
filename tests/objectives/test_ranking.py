"""The losses of rankings, with the values of sentence-transformers 6.2 in float64."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.models.task_models import BertForMultipleChoice
from bert_jax.objectives.ranking import LOSSES, RankingLoss
from bert_jax.training.state import TrainState, init_params
from bert_jax.training.step import make_train_step
from tests.objectives.test_contrastive import LENGTH, ROWS, assert_same, on_eight_devices
from tests.objectives.test_contrastive import make_model as make_encoder


def wave(shape, start, scale=1.0):
    """Returns numbers that are the same everywhere: sin(start), sin(start + 1), ..."""
    return scale * np.sin(start + np.arange(np.prod(shape), dtype=np.float64)).reshape(shape)


PAIRS = wave((6, 1), 1, 3.0)
BINARY, SOFT = (
    [[y] for y in labels] for labels in ([1, 0, 1, 0, 0, 1], [0.9, 0.1, 0.5, 0.25, 0, 1])
)
LISTS, GRADES = wave((3, 4), 5, 3.0), [[3, 0, 1, 2], [0, 1, 0, 1], [1, 0, 0, 9]]
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]], bool)
IN_BATCH = wave((4, 8), 2, 3.0)


def squeezed(logits):
    """Scales logits as MultipleNegativesRankingLoss does before its softmax; ours does not."""
    return 10 * jax.nn.sigmoid(logits)


# Name, options, logits, labels or scores, mask, value, norm of the gradient.
VALUES = {
    "bce": ("bce", {}, PAIRS, BINARY, None, 0.787113060175, 0.206968833),
    "soft labels": ("bce", {}, PAIRS, SOFT, None, 0.913602052002, 0.184806303),
    "pos_weight": ("bce", {"pos_weight": 4.0}, PAIRS, BINARY, None, 1.676318089393, 0.559848747),
    "mse": ("mse", {}, PAIRS, wave((6, 1), 30), None, 7.437607627891, 2.226747647),
    "margin_mse": ("margin_mse", {}, wave((3, 3), 4, 3.0), wave((3, 3), 40, 2.0), None)
    + (8.783418593703, 3.709558077),
    "lambda": ("lambda", {}, LISTS, GRADES, MASK, 3.964400243752, 1.004058331),
    "LambdaRank": ("lambda", {"mu": 0.0}, LISTS, GRADES, MASK, 0.583320324834, 0.125631239),
    "ranknet": ("ranknet", {}, LISTS, GRADES, MASK, 2.706046032415, 0.550396124),
    "listnet": ("listnet", {}, LISTS, GRADES, MASK, 2.906491038614, 0.453809204),
    "softmax": ("softmax", {}, IN_BATCH[:, :4], np.eye(4), None, 4.206790252162, 0.538129961),
    "negatives": ("softmax", {}, IN_BATCH, np.eye(4, 8), None, 5.168497338550, 0.357238299),
}


def labeled(labels, mask=None, dtype=np.float64):
    labels = np.array(labels, dtype)
    return {"labels": labels, "mask": np.ones(labels.shape, bool) if mask is None else mask}


@functools.cache
def compiled(loss_name, options):
    """Returns the jitted value and gradient of a loss whose sums are divided by a total."""
    objective = RankingLoss(loss_name, dict(options))
    change = squeezed if loss_name == "softmax" else lambda logits: logits

    def loss(logits, batch, total):
        return objective.sums({"logits": change(logits)}, batch)["loss"] / total

    return jax.jit(jax.value_and_grad(loss))


def value_and_gradient(objective, logits, batch, total=None):
    """Computes the loss of some rows, whose sums are divided by the total of a batch."""
    total = objective.totals(batch) if total is None else total
    step = compiled(objective.loss_name, tuple(objective.options.items()))
    value, gradient = step(logits, batch, total)
    return float(value), np.asarray(gradient)


@pytest.mark.parametrize("name", VALUES)
def test_values_and_gradients_are_those_of_sentence_transformers(name):
    loss, options, logits, labels, mask, expected, norm = VALUES[name]
    objective, batch = RankingLoss(loss, options), labeled(labels, mask)
    with jax.enable_x64(True):
        value, gradient = value_and_gradient(objective, logits, batch)
        assert value == pytest.approx(expected, abs=1e-11)
        assert np.linalg.norm(gradient) == pytest.approx(norm, abs=1e-9)
    batch = labeled(labels, mask, np.float32)
    value, gradient = value_and_gradient(objective, logits.astype(np.float32), batch)
    assert value == pytest.approx(expected, rel=1e-6)
    assert np.linalg.norm(gradient) == pytest.approx(norm, rel=2e-6)


LISTWISE = ["bce", "softmax", "lambda", "ranknet", "listnet", "mse", "margin_mse"]


@pytest.mark.parametrize("name", LISTWISE)
def test_permuted_candidates_and_rows_of_padding(name):
    """Rows change places, candidates too (the first of margin_mse stays), and one row is empty."""
    objective = RankingLoss(name)
    labels = np.array(GRADES) / 9 if name == "bce" else np.array(GRADES)
    with jax.enable_x64(True):
        expected, gradient = value_and_gradient(objective, LISTS, labeled(labels, MASK))
        rows, columns = [1, 2, 0], [0, 3, 1, 2]
        padding = np.full((1, 4), 7.0)
        moved, its_labels, its_mask = (
            np.concatenate([x[rows][:, columns], empty])
            for x, empty in ((LISTS, padding), (labels, padding), (MASK, padding < 0))
        )
        batch = labeled(its_labels, its_mask)
        value, its_gradient = value_and_gradient(objective, moved, batch)
        assert value == pytest.approx(expected, abs=1e-12)
        np.testing.assert_allclose(its_gradient[:3], gradient[rows][:, columns], atol=1e-12)
        assert not its_gradient[3].any()


@pytest.mark.parametrize("name", LISTWISE)
def test_chunks_have_the_totals_of_the_batch(name):
    """The rows have different numbers of terms: a mean of the means would be another value."""
    objective, labels = RankingLoss(name), np.array(GRADES) / (9 if name == "bce" else 1)
    with jax.enable_x64(True):
        expected, gradient = value_and_gradient(objective, LISTS, labeled(labels, MASK))
        total = objective.totals(labeled(labels, MASK))
        parts = [labeled(labels[[i]], MASK[[i]]) for i in range(3)]
        found = [
            value_and_gradient(objective, LISTS[[i]], part, total) for i, part in enumerate(parts)
        ]
        assert sum(value for value, _ in found) == pytest.approx(expected, abs=1e-12)
        np.testing.assert_allclose(np.concatenate([x for _, x in found]), gradient, atol=1e-12)
        means = [value_and_gradient(objective, LISTS[[i]], x)[0] for i, x in enumerate(parts)]
        # A row of these is one term.
        is_one = name in ("softmax", "listnet")
        assert (abs(np.mean(means) - expected) < 1e-3) == is_one


def test_listnet_of_a_teacher_is_kl():
    teacher, temperature = wave((3, 4), 40, 4.0), 2.0
    objective = RankingLoss("kl", {"temperature": temperature})

    def kl(logits):
        p = jax.nn.softmax(teacher / temperature)
        return (p * (jax.numpy.log(p) - jax.nn.log_softmax(logits))).sum() / 3

    with jax.enable_x64(True):
        _, gradient = value_and_gradient(objective, LISTS, labeled(teacher))
        np.testing.assert_allclose(gradient, jax.grad(kl)(LISTS), atol=1e-12)


def test_several_positives_share_the_cross_entropy():
    with jax.enable_x64(True):
        both, first, second = (
            float(LOSSES["softmax"](LISTS[:1], np.array([labels]), MASK[:1])[0][0])
            for labels in ([2.0, 0, 1, 0], [1.0, 0, 0, 0], [0.0, 0, 1, 0])
        )
    assert both == pytest.approx((2 * first + second) / 3)


def make_model(name):
    """Returns a small reranker without dropout, and its parameters."""
    encoder, _ = make_encoder("encoder")

    class Reranker(BertForMultipleChoice):
        DROPOUT = 0.0

    model = Reranker(encoder.config, num_outputs=1)
    return model, jax.tree.map(lambda x: 4 * x, nn.unbox(init_params(model, 0)))


def make_batch():
    """Returns rows of two to five candidates of unequal lengths, with grades."""
    rng = np.random.default_rng(0)
    shape = ROWS, 5
    lengths = rng.integers(2, LENGTH + 1, shape)
    mask_BxC = np.arange(5) < rng.integers(2, 6, ROWS)[:, None]
    return {
        "input_ids": rng.integers(5, 40, (*shape, LENGTH)).astype(np.int32),
        "token_type_ids": np.zeros((*shape, LENGTH), np.int32),
        "attention_mask": (np.arange(LENGTH) < lengths[..., None]).astype(np.int32),
        "labels": np.where(mask_BxC, rng.integers(0, 4, shape), 9).astype(np.float32),
        "mask": mask_BxC,
    }


def gradients(model, params, batch, num_chunks):
    """Takes a step of plain descent at a rate of 1; returns its loss and its gradient."""
    descent = optax.with_extra_args_support(optax.sgd(1.0))
    objective, rate = RankingLoss("lambda"), lambda step: 1.0
    step = make_train_step(model, descent, rate, objective, seed=0, accumulation_steps=num_chunks)
    state = TrainState(jnp.zeros([], jnp.int32), params, descent.init(params))
    after, metrics = step(state, batch, {})
    return metrics["loss"], jax.tree.map(jnp.subtract, params, after.params)


@pytest.fixture(scope="module")
def whole_step():
    model, params = make_model("lists")
    return jax.jit(gradients, static_argnums=(0, 3))(model, params, make_batch(), 1)


@pytest.mark.slow
@pytest.mark.parametrize("num_chunks", [4, 16])
def test_a_step_in_chunks_is_that_of_the_batch(whole_step, num_chunks):
    model, params = make_model("lists")
    step = jax.jit(gradients, static_argnums=(0, 3))
    assert_same(step(model, params, make_batch(), num_chunks), whole_step)


@pytest.mark.slow
def test_a_step_on_eight_devices_is_that_of_one(whole_step, tmp_path):
    found = on_eight_devices("lists", tmp_path)
    assert [*found] == ["dp", "fsdp"]
    for result in found.values():
        assert_same(result, whole_step)
