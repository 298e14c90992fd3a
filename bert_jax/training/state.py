"""The state that each train step updates, and its creation."""

import functools
from typing import Any, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.parallel.mesh import is_on_host
from bert_jax.parallel.sharding import Layout


@flax.struct.dataclass
class TrainState:
    """Steps taken (int32), parameters and optimizer state (float32 pytrees)."""

    step: jax.Array
    params: Any
    opt_state: Any

    @classmethod
    def create(cls, params: Any, optimizer: optax.GradientTransformation) -> Self:
        return cls(jnp.zeros([], jnp.int32), params, optimizer.init(params))

    def is_finite(self) -> bool:
        """Returns whether the state has neither NaN nor infinity."""
        leaves = jax.tree.leaves(self)
        if all(map(is_on_host, leaves)):
            return all(np.isfinite(leaf).all() for leaf in leaves)
        return bool(_all_finite(leaves))


@jax.jit
def _all_finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]))


def init_params(model: nn.Module, seed: int) -> Any:
    """Creates initial parameters, each in its box of logical axis names (flax's `meta`)."""
    batch = {name: jnp.zeros((1,) * axes, jnp.int32) for name, axes in model.fields.items()}
    return model.init(jax.random.key(seed), batch, deterministic=True)["params"]


@functools.cache
def abstract_params(model: nn.Module) -> Any:
    """Returns the shapes and dtypes of `init_params`, in the same boxes.

    The result is cached, because a run needs it several times at its start and tracing is slow.
    """
    return jax.eval_shape(lambda: init_params(model, 0))


def num_parameters(model: nn.Module) -> int:
    """Counts the parameters, without the rows that only pad the vocabulary."""
    config, total = model.config, 0
    boxes = jax.tree.leaves(
        abstract_params(model), is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata)
    )
    for box in boxes:
        is_padded = isinstance(box, nn.LogicallyPartitioned) and "vocab" in box.names
        size = nn.unbox(box).size
        total += size * config.vocab_size // config.padded_vocab_size if is_padded else size
    return total


def _is_masked(leaf: Any) -> bool:
    return isinstance(leaf, optax.MaskedNode)


def state_shardings(
    model: nn.Module, optimizer: optax.GradientTransformation, layout: Layout
) -> TrainState:
    """Makes the shardings of the state; moments are sharded like their parameters."""
    boxed = abstract_params(model)
    params = layout.params(boxed)
    opt_state = jax.eval_shape(optimizer.init, nn.unbox(boxed))
    opt_state = optax.tree_utils.tree_map_params(
        optimizer,
        # Muon and Adam each have no moments of the other's parameters.
        lambda leaf, sharding: leaf if _is_masked(leaf) else sharding,
        opt_state,
        params,
        transform_non_params=lambda _: layout.replicated,
        is_leaf=_is_masked,
    )
    return TrainState(layout.replicated, params, opt_state)
