"""The mesh of devices: named axes for data and for parts of the model."""

import math
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import AxisType, Mesh

from bert_jax.errors import UserError

# The batch is split over these; parameters too, over `fsdp`.
BATCH_AXES = ("data", "fsdp")


def make_mesh(sizes: Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Builds the mesh of `config.mesh`.

    Args:
      sizes: Devices along each axis, in order; one may be -1, all that remain.
      devices: Those to use; by default all there are.

    Raises:
      UserError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    shape = dict(sizes)
    known = math.prod(size for size in shape.values() if size != -1)
    for axis, size in shape.items():
        if size == -1:
            shape[axis] = len(devices) // known
    if math.prod(shape.values()) != len(devices):
        told = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise UserError(
            f"config.mesh ({told}) does not multiply to the {len(devices)} device(s) there are"
        )
    return jax.make_mesh(
        tuple(shape.values()),
        tuple(shape),
        # Linen's logical constraints fail under the default, explicit axes.
        axis_types=(AxisType.Auto,) * len(shape),
        devices=devices,
    )


def num_data_shards(mesh: Mesh) -> int:
    """In how many parts the batch is cut."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)
