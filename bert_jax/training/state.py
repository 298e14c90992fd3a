"""What training changes from step to step, and how it starts."""

from collections.abc import Callable
from typing import Any, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class TrainState:
    """Steps taken (int32), parameters and optimizer state (float32 pytrees)."""

    step: jax.Array
    params: Any
    opt_state: Any

    @classmethod
    def create(cls, params: Any, optimizer: optax.GradientTransformation) -> Self:
        return cls(jnp.zeros([], jnp.int32), params, optimizer.init(params))


def init_params(model: nn.Module, seed: int) -> Any:
    """Fresh parameters, each in its box of logical axis names (see flax's `meta`)."""
    one_BxL = jnp.zeros((1, 1), jnp.int32)
    inputs = (one_BxL,) * len(model.INPUTS)
    variables = model.init(jax.random.key(seed), *inputs, deterministic=True)
    return variables["params"]


def init_state(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    seed: int,
    shardings: TrainState,
) -> TrainState:
    """Creates the state where it will live: no device ever holds more than its part."""

    def create() -> TrainState:
        return TrainState.create(nn.unbox(init_params(model, seed)), optimizer)

    return jax.jit(create, out_shardings=shardings)()


def state_shardings(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    shardings_of: Callable[[Any], Any],
    replicated: jax.sharding.Sharding,
) -> TrainState:
    """Shardings of the whole state: moments lie where their parameters lie.

    Args:
      model: The model.
      optimizer: Its optimizer.
      shardings_of: Maps abstract, boxed parameters to a tree of shardings.
      replicated: Of the scalars.
    """
    boxed = jax.eval_shape(lambda: init_params(model, 0))
    params = shardings_of(boxed)
    opt_state = jax.eval_shape(optimizer.init, nn.unbox(boxed))
    opt_state = optax.tree_utils.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        opt_state,
        params,
        transform_non_params=lambda _: replicated,
    )
    return TrainState(replicated, params, opt_state)


def abstract_state(
    model: nn.Module, optimizer: optax.GradientTransformation, shardings: TrainState
) -> TrainState:
    """Shapes, dtypes and shardings of the state: what a checkpoint is restored into."""
    state = jax.eval_shape(lambda: TrainState.create(nn.unbox(init_params(model, 0)), optimizer))
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        shardings,
    )
