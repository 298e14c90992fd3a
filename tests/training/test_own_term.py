"""A term from outside the package with a teacher and sampling."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.objectives.objective import apply
from bert_jax.pretraining.build import make_trainer
from tests.small import random_batch, randomized, small_config
from tests.training import toy_term

UNIFORM_V = np.full(98, -np.log(98), np.float32)
SCORED = {"example_weights": np.ones(16, np.float32)}


@functools.cache
def trainer(accumulation_steps=1):
    """Returns a trainer with only the toy term, without dropout."""
    config = small_config(
        **{
            "objective.terms": (toy_term.NAME,),
            "objective.weights": (1.0,),
            "model.num_hidden_layers": 1,
            "model.hidden_dropout_prob": 0.0,
            "model.attention_probs_dropout_prob": 0.0,
            "train.gradient_accumulation_steps": accumulation_steps,
        }
    )
    return make_trainer(config, jax.devices()[:1])


def metrics_of(trainer, state, batch):
    state, metrics = trainer.train_step(state, batch)
    return state, {name: float(value) for name, value in metrics.items()}


@functools.cache
def with_teacher():
    """Returns a trainer like `trainer`, with a random teacher of the student's shape."""
    return dataclasses.replace(trainer(), frozen=randomized(trainer().init_state().params, 0))


@jax.jit
def squared_distances(params, batch, teacher):
    ours, theirs = (apply(trainer().model, x, batch)["toy"][0] for x in (params, teacher))
    return jnp.sum((ours - theirs) ** 2)


class TestFrozenParameters:
    def test_training_and_evaluation_use_them(self):
        batch, t = random_batch(0), with_teacher()
        state = t.init_state()
        expected = squared_distances(state.params, batch, t.frozen)
        sums, _ = t.eval_step(state.params, batch | SCORED, UNIFORM_V)
        np.testing.assert_allclose(sums["toy"]["toy_loss"][0], expected, rtol=1e-5)
        _, metrics = metrics_of(t, state, batch)
        np.testing.assert_allclose(metrics["toy_loss"], expected / 16, rtol=1e-5)
        assert metrics["loss"] == metrics["toy_loss"]

    def test_they_are_neither_trained_nor_donated_nor_part_of_the_state(self):
        t, batch = with_teacher(), random_batch(0)
        before = jax.tree.map(np.array, t.frozen)
        state = t.init_state()
        state, _ = t.train_step(state, batch)
        previous, (state, _) = state, t.train_step(state, batch)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(previous.params))
        jax.tree.map(np.testing.assert_array_equal, t._placed_frozen, before)
        assert np.isfinite(t.train_step(state, batch)[1]["loss"]), "usable after the step"
        assert jax.tree.structure(state) == jax.tree.structure(trainer().init_state())


class TestSamples:
    def steps(self, t, count=3):
        """Returns the metrics of several steps on one batch."""
        state, found = t.init_state(), []
        for _ in range(count):
            state, metrics = metrics_of(t, state, random_batch(0))
            found.append(metrics)
        return found

    def test_they_differ_between_steps_and_are_reproducible(self):
        steps = self.steps(trainer())
        drawn = [step[name] for step in steps for name in ("toy_sample", "toy_dropout")]
        assert len({round(value, 5) for value in drawn}) == 6
        assert self.steps(trainer()) == steps

    @pytest.mark.slow
    def test_they_differ_between_microbatches(self):
        (one,), (four,) = self.steps(trainer(), 1), self.steps(trainer(4), 1)
        variance = four["toy_sample_squared"] - four["toy_sample"] ** 2
        assert variance > 1e-3
        assert one["toy_sample_squared"] == pytest.approx(one["toy_sample"] ** 2)
        assert four["toy_sample"] != one["toy_sample"]
        assert self.steps(trainer(4), 1) == [four]


def test_term_with_a_missing_batch_field_is_refused():
    name = "tests.training.toy_term:NeedsMissingField"
    config = small_config(**{"objective.terms": ("masked_lm", name)})
    with pytest.raises(UserError) as error:
        make_trainer(config, jax.devices()[:1])
    assert str(error.value) == (
        f"config.objective.terms has {name}, which needs replaced in each batch; "
        "config.data.rows=pairs with config.data.pair_labels=next and "
        "config.data.corruption=masked_lm do not provide it"
    )
