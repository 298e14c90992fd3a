"""Sparse losses: the values of sentence-transformers, schedules, and vocabularies over devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.objectives.contrastive import Contrastive
from bert_jax.objectives.sparse import SparseContrastive, flops_loss
from tests.objectives.waves import assert_value_and_norms, wave

LOGITS = [wave((4, 16), start, 2) for start in (1, 100, 200)]
TEACHER = wave((4, 2), 40, 2)
WEIGHTS = {"query_flops": 0.05, "document_flops": 0.03}


def weights_of(logits):
    return jnp.log1p(jax.nn.relu(logits))


@pytest.fixture
def loss_and_metrics(monkeypatch):
    """Returns a function of logits, whose weights stand for the vectors of a model."""

    def of(objective, arrays, labels=None, step=0, numbers=None):
        def embed(self, model, params, batch, rngs):
            queries, *documents = map(weights_of, params)
            return queries, jnp.stack(documents, axis=1)

        monkeypatch.setattr(Contrastive, "embed", embed)
        monkeypatch.setattr(SparseContrastive, "embed", embed)
        shape = len(arrays[0]), len(arrays) - 1
        numbers = np.arange(shape[0] * shape[1]).reshape(shape) if numbers is None else numbers
        batch = {"document_numbers": numbers, "query_numbers": 100 + np.arange(shape[0])}
        if labels is not None:
            batch["labels"] = labels
        return objective.loss(None, arrays, batch, {}, 1, {}, step)

    return of


@pytest.mark.parametrize(
    ("name", "options", "value", "norms"),
    [
        ("mnr", {"scale": 1.0}, 3.320995333053, (0.522913497, 0.370277553, 0.346099453)),
        ("margin_mse", {}, 3.344162023247, (0.624206651, 2.036909269, 1.299277000)),
        (
            "kl",
            {"temperature": 2.0, "teacher_temperature": 2.0},
            0.590321199684,
            (0.086575081, 0.243931729, 0.153161431),
        ),
    ],
)
def test_losses_are_those_of_sentence_transformers(loss_and_metrics, name, options, value, norms):
    """Version 6.2 gave these values, for the base and the terms too."""
    objective = SparseContrastive(name, options, **WEIGHTS)
    labels = None if name == "mnr" else TEACHER

    def loss(*arrays):
        given = None if labels is None else labels.astype(arrays[0].dtype)
        found, metrics = loss_and_metrics(objective, arrays, given)
        assert metrics.keys() == set(objective.averaged)
        return found

    assert_value_and_norms(loss, LOGITS, value, norms)


@pytest.mark.parametrize(
    ("arrays", "factor", "value", "norms"),
    [
        (LOGITS[:1], 1, 2.851802546737, (0.537131955,)),
        (LOGITS[:1], 0.05, 0.142590127337, None),
        (LOGITS[1:], 0.03, 0.076864089472, None),
        # With only a document weight, FLOPS is over all three arrays. The loss mnr is subtracted.
        (LOGITS, 0.03, 3.175733367022 - 3.101541116245, None),
    ],
)
def test_flops_is_that_of_sentence_transformers(arrays, factor, value, norms):
    def loss(*arrays):
        vectors = weights_of(jnp.concatenate(arrays))
        return factor * flops_loss(vectors, jnp.ones(len(vectors), bool))

    if norms:
        assert_value_and_norms(loss, arrays, value, norms)
    else:
        with jax.enable_x64(True):
            assert float(loss(*arrays)) == pytest.approx(value, abs=2e-12)


def test_the_factors_grow_with_the_square_of_the_step(loss_and_metrics):
    objective = SparseContrastive("mnr", {"scale": 1.0}, **WEIGHTS, flops_warmup=33)
    arrays = [x.astype(np.float32) for x in LOGITS]
    found = {step: loss_and_metrics(objective, arrays, step=step)[1] for step in (0, 11, 33, 99)}
    for name, full in (("query_flops", 0.142590127), ("document_flops", 0.076864089)):
        np.testing.assert_allclose(
            [found[step][name] for step in found],
            [0, full / 9, full, full],
            rtol=1e-6,
        )
    added = found[33]["loss"] - found[0]["loss"]
    assert added == pytest.approx(0.142590127 + 0.076864089, rel=1e-5)


def test_documents_that_a_row_lacks_count_nowhere(loss_and_metrics):
    """A term whose factor is 0 does not exist either."""
    numbers = np.arange(8).reshape(4, 2)
    numbers[1:, 1] = -1
    objective = SparseContrastive("mnr", {"scale": 1.0}, **WEIGHTS | {"query_flops": 0.0})
    arrays = [x.astype(np.float32) for x in LOGITS]
    loss, metrics = loss_and_metrics(objective, arrays, numbers=numbers)
    kept = np.concatenate([weights_of(LOGITS[1]), weights_of(LOGITS[2])[:1]])
    assert metrics["document_active_dims"] == pytest.approx((kept > 0).sum() / 5)
    assert metrics["document_flops"] == pytest.approx(0.03 * (kept.mean(axis=0) ** 2).sum())
    assert "query_flops" not in metrics and "query_flops" not in objective.averaged
    arrays[2][1:] = 5
    again, _ = loss_and_metrics(objective, arrays, numbers=numbers)
    assert float(again) == pytest.approx(float(loss), rel=1e-6)
