"""The train and evaluation steps: pure functions of state and batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from bert_jax.objectives.objective import Batch, Metrics, Objective
from bert_jax.objectives.pretraining import PreTraining
from bert_jax.training.layer_rates import LayerRates
from bert_jax.training.state import TrainState

PRE_TRAINING = PreTraining()


def make_train_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    schedule: Callable[[jax.Array], jax.Array],
    *,
    seed: int,
    accumulation_steps: int = 1,
    objective: Objective = PRE_TRAINING,
    rates: LayerRates | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Builds the step of an objective.

    With `accumulation_steps` above 1 the batch is cut in that many microbatches,
    one after another on the device. Each one's loss is divided by what the whole
    batch's would be, so that the sum of gradients is the big batch's gradient.

    Dropout depends on (seed, step, microbatch) alone.
    """

    def loss(params, batch, dropout_key, totals):
        if rates:
            params = rates.without_gradients(params)
        return objective.loss(model, params, batch, dropout_key, totals)

    def gradients(params, batch, key):
        totals = objective.totals(batch)
        grad = jax.grad(loss, has_aux=True)
        if accumulation_steps == 1:
            return grad(params, batch, jax.random.fold_in(key, 0), totals)

        def one(carry, inputs):
            index, microbatch = inputs
            part = grad(params, microbatch, jax.random.fold_in(key, index), totals)
            return jax.tree.map(jnp.add, carry, part), None

        microbatches = jax.tree.map(_split(accumulation_steps), batch)
        first = jax.tree.map(lambda x: x[0], microbatches)
        zeros = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(grad, params, first, key, totals)
        )
        total, _ = jax.lax.scan(one, zeros, (jnp.arange(accumulation_steps), microbatches))
        return total

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, metrics = gradients(state.params, batch, key)
        metrics["grad_norm"] = optax.global_norm(grads)
        metrics["learning_rate"] = schedule(state.step)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state), metrics

    return train_step


def make_eval_step(model: nn.Module, objective: Objective = PRE_TRAINING) -> Callable[..., Metrics]:
    """Builds (params, batch, *operands) -> what `objective.evaluate` gives."""

    def eval_step(params: Any, batch: Batch, *operands: jax.Array) -> Metrics:
        return objective.evaluate(model, params, batch, *operands)

    return eval_step


def _split(parts: int) -> Callable[[jax.Array], jax.Array]:
    """[B, ...] -> [parts, B / parts, ...] without moving rows between devices.

    Microbatch i takes every `parts`-th row: a device that holds a contiguous
    slice of the batch finds its share of every microbatch in that slice.
    """

    def split(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)

    return split
