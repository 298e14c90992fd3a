"""The device mesh, with named axes for data and for parts of the model."""

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from bert_jax.base.errors import UserError

# The batch is split over these axes. Parameters may also be split over `fsdp`.
BATCH_AXES = ("data", "fsdp")
# The only axis that may run between slices. The network between slices is far slower than the links
# inside a slice. This axis carries one sum of gradients per step; the others communicate in every
# layer.
SLICE_AXIS = "data"
# The estimated step of BERT-large is shortest if its parameters are sharded over 64 chips of a
# slice (docs/hardware.md). With fewer than 16 columns on a chip, they do not fill the tiles of
# its memory, and the compiler replaces asynchronous gathers by synchronous sums.
_MOST_SHARDS, _LEAST_COLUMNS = 64, 16


def make_mesh(
    sizes: Mapping[str, int],
    devices: Sequence[jax.Device] | None = None,
    *,
    sharding: str = "dp",
    widths: Sequence[int] = (),
) -> Mesh:
    """Builds the mesh of `config.mesh`.

    On TPUs, neighbors in the mesh are neighbors in the torus as far as its shape allows, closest
    along the last axis. Several slices are arranged along `data`.

    Args:
      sizes: The number of devices along each axis, in order. One size may be -1, for all
        remaining devices. The size of `fsdp` may be 0, which chooses one.
    """
    devices = jax.devices() if devices is None else devices
    shape = dict(sizes)
    if not shape["fsdp"]:
        shape["fsdp"] = _chosen_fsdp(shape, devices, sharding, widths)
    known = math.prod(size for size in shape.values() if size != -1)
    for axis, size in shape.items():
        if size == -1:
            shape[axis] = len(devices) // known
    if math.prod(shape.values()) != len(devices):
        wanted = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise UserError(
            f"the sizes of config.mesh ({wanted}) do not multiply to the {len(devices)} available "
            "device(s)"
        )
    # Linen's logical constraints fail under Explicit axes.
    return Mesh(_arranged(shape, devices), tuple(shape), axis_types=(AxisType.Auto,) * len(shape))


def num_data_shards(mesh: Mesh) -> int:
    """Returns the number of shards of the batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def num_slices(devices: Sequence[jax.Device]) -> int:
    """Returns the number of TPU slices that the devices belong to.

    On devices other than TPUs, `slice_index` counts hosts, and any axis may run between hosts.
    """
    if devices[0].platform != "tpu":
        return 1
    return len({getattr(device, "slice_index", 0) for device in devices})


def is_on_host(array: jax.Array | np.ndarray) -> bool:
    """Returns whether all of an array lies in the memory of this host, where numpy reads it."""
    if not isinstance(array, jax.Array):
        return True
    return array.is_fully_addressable and all(d.platform == "cpu" for d in array.devices())


def _chosen_fsdp(
    shape: Mapping[str, int], devices: Sequence[jax.Device], sharding: str, widths: Sequence[int]
) -> int:
    is_sharded = sharding in ("fsdp", "zero1", "fsdp_tp")
    if not is_sharded and not (sharding == "auto" and devices[0].platform == "tpu"):
        return 1
    free = len(devices) // math.prod(n for n in (shape["data"], shape["model"]) if n != -1)
    if shape[SLICE_AXIS] == -1:
        free //= num_slices(devices)
    columns = math.gcd(_MOST_SHARDS * _LEAST_COLUMNS, *widths)
    return math.gcd(max(1, free), max(1, columns // _LEAST_COLUMNS))


def _arranged(shape: Mapping[str, int], devices: Sequence[jax.Device]) -> np.ndarray:
    slices = num_slices(devices)
    if slices == 1:
        return mesh_utils.create_device_mesh(
            tuple(shape.values()), devices, allow_split_physical_axes=True
        )
    within = shape | {SLICE_AXIS: shape[SLICE_AXIS] // slices}
    between = dict.fromkeys(shape, 1) | {SLICE_AXIS: slices}
    return mesh_utils.create_hybrid_device_mesh(
        tuple(within.values()), tuple(between.values()), devices, allow_split_physical_axes=True
    )
