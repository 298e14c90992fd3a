"""The train step: a pure function of state and batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from bert_jax.objectives.objective import Batch, Metrics, Objective, split_rows
from bert_jax.training.state import TrainState

# Folded into a microbatch's dropout key to make its key for sampling.
_SAMPLE = 1


def make_train_step(
    model: nn.Module,
    optimizer: optax.GradientTransformationExtraArgs,
    schedule: Callable[[jax.Array], jax.Array],
    objective: Objective,
    *,
    seed: int,
    accumulation_steps: int = 1,
    gather: Callable[[Any], Any] = lambda params: params,
) -> Callable[[TrainState, Batch, Any], tuple[TrainState, Metrics]]:
    """Builds the function (state, batch, frozen) -> (state, metrics).

    `frozen` holds parameters that the objective reads but that are not trained. `optimizer` gets
    the step as an argument `step`.

    With `accumulation_steps` above 1 the batch is split into that many microbatches, which run
    one after another. The loss of each is divided by the total of the batch, so the gradients of
    the microbatches add up to the gradient of the batch.

    Dropout and sampling depend only on (seed, step, microbatch).

    `gather` makes the parameters that the model reads from those of the state; see `make_gather`.
    """

    def loss(params, batch, key, totals, frozen, step):
        rngs = {"dropout": key, "sample": jax.random.fold_in(key, _SAMPLE)}
        return objective.loss(model, params, batch, rngs, totals, frozen, step)

    def gradients(params, batch, key, frozen, step):
        totals = objective.totals(batch)
        # Outside of the loop over microbatches, which all read the same copies.
        copies, of_params = jax.vjp(gather, params)
        grad_of_copies = jax.grad(loss, has_aux=True)

        def grad(batch, key):
            of_copies, metrics = grad_of_copies(copies, batch, key, totals, frozen, step)
            return *of_params(of_copies), metrics

        if accumulation_steps == 1:
            return grad(batch, jax.random.fold_in(key, 0))

        def add_microbatch(carry, inputs):
            index, microbatch = inputs
            part = grad(microbatch, jax.random.fold_in(key, index))
            return jax.tree.map(jnp.add, carry, part), None

        microbatches = jax.tree.map(split_rows(accumulation_steps), batch)
        first = jax.tree.map(lambda x: x[0], microbatches)
        shapes = jax.eval_shape(grad, first, key)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        total, _ = jax.lax.scan(
            add_microbatch, zeros, (jnp.arange(accumulation_steps), microbatches)
        )
        return total

    def train_step(state: TrainState, batch: Batch, frozen: Any) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, metrics = gradients(state.params, batch, key, frozen, state.step)
        metrics["grad_norm"] = optax.global_norm(grads)
        metrics["learning_rate"] = schedule(state.step)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params, step=state.step)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state), metrics

    return train_step
