"""From the models' logical axis names to mesh axes: one table a preset."""

import math
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError
from bert_jax.parallel.mesh import BATCH_AXES

Rules = tuple[tuple[str, str | None], ...]

# Logical names that a table leaves out are replicated.
_FSDP: Rules = (("embed", "fsdp"),)
_TENSOR: Rules = (("vocab", "model"), ("heads", "model"), ("mlp", "model"))
PRESETS: dict[str, Rules] = {
    "dp": (),
    "fsdp": _FSDP,
    "tp": _TENSOR,
    "fsdp_tp": _FSDP + _TENSOR,
}


def param_shardings(boxed: Any, mesh: Mesh, preset: str) -> Any:
    """Shardings of parameters (or of anything abstract) under a preset.

    Args:
      boxed: Abstract arrays, those with logical names in flax's boxes.
      mesh: The device mesh.
      preset: A key of `PRESETS`.

    Returns:
      A tree of NamedShardings, without boxes.

    Raises:
      UserError: an axis does not divide over its devices, or the mesh has no devices
        on an axis that the preset shards over; the message names it.
    """
    _check_preset(mesh, preset)
    specs = nn.get_partition_spec(boxed)
    shardings = nn.logical_to_mesh_sharding(specs, mesh, PRESETS[preset])
    jax.tree_util.tree_map_with_path(
        lambda path, leaf, sharding: _check_divides(path, leaf.shape, sharding),
        nn.unbox(boxed),
        shardings,
    )
    return shardings


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over the data axes, everything else whole."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Makes global arrays of this host's rows, each on the device that wants them."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }


def _check_preset(mesh: Mesh, preset: str) -> None:
    """Refuses a preset that would silently replicate what it promises to shard."""
    for axis in {axis for _, axis in PRESETS[preset] if axis}:
        if mesh.devices.size > 1 and mesh.shape[axis] == 1:
            raise UserError(
                f"config.sharding is {preset!r} but config.mesh.{axis} is 1; give the axis "
                f"devices, for example --config.mesh.{axis}=-1 --config.mesh.data=1"
            )


def _check_divides(path: tuple, shape: tuple[int, ...], sharding: NamedSharding) -> None:
    for size, axes in zip(shape, sharding.spec, strict=False):
        if axes is None:
            continue
        axes = (axes,) if isinstance(axes, str) else axes
        parts = math.prod(sharding.mesh.shape[axis] for axis in axes)
        if size % parts:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise UserError(
                f"{name} of shape {shape} does not divide over the {parts} devices of "
                f"config.mesh.{axes[0]}; make {size} a multiple of {parts} or take fewer devices"
            )
