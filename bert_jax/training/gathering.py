"""Copies of sharded parameters that a train step gathers once, at its start."""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.lax import with_sharding_constraint
from jax.sharding import NamedSharding

from bert_jax.models.layers import matrices
from bert_jax.parallel.sharding import Layout
from bert_jax.training.state import abstract_params


def copied_bytes(model: nn.Module) -> int:
    """Returns the size of the copies that `make_gather` makes on each device."""
    return sum(
        box.value.size * jnp.dtype(box.dtype).itemsize
        for box in matrices(abstract_params(model)).values()
    )


def make_gather(model: nn.Module, layout: Layout) -> Callable[[Any], Any]:
    """Makes the function that turns the state's parameters into those that the layers read.

    It changes them only for zero1, where it rounds matrices to the dtype of their products and
    gathers them. Each matrix is then moved once. Where layers read sharded matrices, both the
    forward and the backward pass gather them. The gradient of a copy is float32, and sharded like
    the parameter.
    """
    if layout.preset != "zero1":
        return lambda params: params
    boxed = abstract_params(model)
    found, shardings = matrices(boxed), layout.params(boxed)

    def gathered(path: tuple, param: jax.Array, sharding: NamedSharding) -> jax.Array:
        matrix = found.get(jax.tree_util.keystr(path, simple=True, separator="/"))
        if matrix is None or sharding.is_fully_replicated:
            return param
        columns = math.prod(param.shape[axis] for axis in matrix.outputs)
        return _gathered(param, matrix.dtype, columns, layout.replicated, sharding)

    return lambda params: jax.tree_util.tree_map_with_path(gathered, params, shardings)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _gathered(
    param: jax.Array, dtype: Any, columns: int, replicated: NamedSharding, sharding: NamedSharding
) -> jax.Array:
    """Rounds a parameter and gathers it, as the matrix [R, C] that its products read.

    If a TPU gathered an array with an axis of heads, it would have to lay it out in another order
    afterwards.

    The result is float32 again, so that gradients of several uses are summed in float32. The
    compiler drops this conversion, because each product converts back.
    """
    rows_RxC = _apart_on_tpus(param.astype(dtype).reshape(-1, columns))
    copy_RxC = _apart_on_tpus(with_sharding_constraint(rows_RxC, replicated))
    return copy_RxC.reshape(param.shape).astype(param.dtype)


_gathered.defvjp(
    lambda param, *options: (_gathered(param, *options), None),
    lambda dtype, columns, replicated, sharding, _, gradient: (
        with_sharding_constraint(gradient, sharding),
    ),
)


def _apart_on_tpus(x: jax.Array) -> jax.Array:
    """Keeps the compiler for TPUs from moving a reshape across a gather."""
    return jax.lax.platform_dependent(x, tpu=jax.lax.optimization_barrier, default=lambda x: x)
