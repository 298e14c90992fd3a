"""The mesh of devices: named axes for data and for parts of the model."""

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from bert_jax.errors import UserError

# The batch is split over these; parameters too, over `fsdp`.
BATCH_AXES = ("data", "fsdp")
# The only axis that may run between slices, whose network is far slower than that inside
# one: it carries one sum of gradients a step, the others something in every layer.
SLICE_AXIS = "data"


def make_mesh(sizes: Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Builds the mesh of `config.mesh`.

    On TPUs neighbours in the mesh are neighbours in the torus, as far as its shape allows,
    and the axis that comes last the nearest. Several slices are laid along `data`.

    Args:
      sizes: Devices along each axis, in order; one may be -1, all that remain.
      devices: Those to use; by default all there are.

    Raises:
      UserError: the sizes do not multiply to the number of devices, or several slices
        do not divide the data axis.
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
    # Linen's logical constraints fail under explicit axes.
    return Mesh(_arranged(shape, devices), tuple(shape), axis_types=(AxisType.Auto,) * len(shape))


def num_data_shards(mesh: Mesh) -> int:
    """In how many parts the batch is cut."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def num_slices(devices: Sequence[jax.Device]) -> int:
    """TPU slices that the devices are in.

    Of other devices too JAX may know a `slice_index`, but it then counts hosts, between
    which any axis may run.
    """
    if devices[0].platform != "tpu":
        return 1
    return len({getattr(device, "slice_index", 0) for device in devices})


def _arranged(shape: Mapping[str, int], devices: Sequence[jax.Device]) -> np.ndarray:
    """The devices as an array of this shape."""
    slices = num_slices(devices)
    if slices == 1:
        return mesh_utils.create_device_mesh(
            tuple(shape.values()), devices, allow_split_physical_axes=True
        )
    if shape[SLICE_AXIS] % slices:
        raise UserError(
            f"config.mesh.{SLICE_AXIS} is {shape[SLICE_AXIS]}, but the {len(devices)} devices are "
            f"in {slices} slices and only this axis may run between them: make it a multiple of "
            f"{slices}"
        )
    within = shape | {SLICE_AXIS: shape[SLICE_AXIS] // slices}
    between = dict.fromkeys(shape, 1) | {SLICE_AXIS: slices}
    return mesh_utils.create_hybrid_device_mesh(
        tuple(within.values()), tuple(between.values()), devices, allow_split_physical_axes=True
    )
