"""The state that training changes from step to step, and how it is created."""

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
    """Returns fresh parameters, each in its box of logical axis names (flax's `meta`)."""
    batch = {name: jnp.zeros((1,) * axes, jnp.int32) for name, axes in model.fields.items()}
    return model.init(jax.random.key(seed), batch, deterministic=True)["params"]


def init_state(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    seed: int,
    shardings: TrainState,
) -> TrainState:
    """Creates the state in place: no device ever holds more than its own part."""

    def create() -> TrainState:
        return TrainState.create(nn.unbox(init_params(model, seed)), optimizer)

    return jax.jit(create, out_shardings=shardings)()


def state_shardings(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    shardings_of: Callable[[Any], Any],
    replicated: jax.sharding.Sharding,
) -> TrainState:
    """Returns the shardings of the whole state; moments lie where their parameters lie.

    Args:
      model: The model.
      optimizer: Its optimizer.
      shardings_of: Maps abstract, boxed parameters to a tree of shardings.
      replicated: The sharding of scalars.
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
    """Returns shapes, dtypes and shardings of the state, for restoring a checkpoint."""
    state = jax.eval_shape(lambda: TrainState.create(nn.unbox(init_params(model, 0)), optimizer))
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        shardings,
    )
