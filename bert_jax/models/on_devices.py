"""How the arrays of a model are divided over devices, and functions that run on each device."""

import math

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec

# The logical axes of an array [B, L, A*K], and of one value for each head of a sequence.
ALL_HEADS, EACH_HEAD = ("batch", None, "activation_heads"), ("batch", "activation_heads")


def num_shards(axes: str | tuple[str, ...] | None) -> int:
    """Returns the number of devices along axes of the mesh in scope; 1 without a mesh."""
    shape = jax.sharding.get_abstract_mesh().shape
    names = (axes,) if isinstance(axes, str) else axes or ()
    return math.prod(shape.get(name, 1) for name in names)


def on_each_device(function, inputs, in_axes, out_axes):
    """Calls a function of arrays on the part of them that each device has.

    It returns a sequence of arrays. `in_axes` and `out_axes` have the logical axes of each array.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return function(*inputs)
    return jax.shard_map(
        function,
        in_specs=tuple(map(_spec, in_axes)),
        out_specs=tuple(map(_spec, out_axes)),
        # The outputs of a kernel do not declare over which axes they vary.
        check_vma=False,
    )(*inputs)


def _spec(axes: tuple[str | None, ...]) -> PartitionSpec:
    """Returns the sharding of an array by the logical rules in scope."""
    spec = nn.logical_to_mesh_axes(axes)
    return PartitionSpec(*[None] * len(axes)) if spec is None else spec


def num_head_shards() -> int:
    """Returns the number of devices that share the heads of a sequence."""
    return num_shards(_spec(EACH_HEAD)[1])


def num_batch_shards() -> int:
    """Returns the number of devices that the rows of a batch are divided over."""
    return num_shards(_spec(("batch",))[0])
