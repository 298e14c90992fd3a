"""Finds TPU slices by name, and describes their devices without a TPU.

The TPU compiler (libtpu) can describe any slice that Google sells and compile a program for
it on a machine without a TPU.
"""

import dataclasses
import math
import os
import re

import jax
from jax.experimental import topologies as jax_topologies

from bert_jax.base.errors import UserError
from bert_jax.parallel.chips import CHIPS, Chip

# The shapes of a slice by its number of chips.
_TORUS_2D = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16"}
_TORUS_2D |= {256: "16x16"}
_TORUS_3D = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8"}
_TORUS_3D |= {256: "4x8x8", 512: "8x8x8", 768: "8x8x12", 1024: "8x8x16", 2048: "8x16x16"}
_LARGEST_V5P = {4096: "16x16x16", 6144: "16x16x24"}
_POD_V2 = {4: "2x2", 16: "4x4", 64: "8x8", 128: "8x16", 256: "16x16"}
_POD_V3 = _POD_V2 | {32: "4x8", 512: "16x32", 1024: "32x32"}


# These keep libtpu from querying Google Cloud's metadata server, from locking the absent TPU for
# one process, and from warning that there is no TPU.
_COMPILER_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}


# From v2 to v5p a name counts cores, two per chip; v5e and v6e count chips.
ACCELERATORS = {
    f"{prefix}-{chips * cores}": f"{chip}:{shape}"
    for chip, prefix, cores, slices in (
        ("v2", "v2", 2, _POD_V2),
        ("v3", "v3", 2, _POD_V3),
        ("v4", "v4", 2, _TORUS_3D),
        ("v5e", "v5litepod", 1, _TORUS_2D),
        ("v5p", "v5p", 2, _TORUS_3D | _LARGEST_V5P),
        ("v6e", "v6e", 1, _TORUS_2D),
    )
    for chips, shape in slices.items()
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """One or more equal slices.

    Attributes:
      name: The name, such as "v5e:16x16".
      shape: Chips along each dimension of a slice.
      num_slices: The number of slices, connected by the data center's network.
    """

    name: str
    chip: Chip
    shape: tuple[int, ...]
    num_slices: int = 1

    @property
    def num_chips(self) -> int:
        return math.prod(self.shape) * self.num_slices


def find(name: str, num_slices: int = 1) -> Topology:
    """Finds a topology by its name, `v5e:16x16`, or an accelerator name, `v5litepod-256`."""
    name = name.strip().lower()
    topology = ACCELERATORS.get(name, name)
    chip, _, shape = topology.partition(":")
    if chip in CHIPS and re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", shape):
        sizes = tuple(int(size) for size in shape.split("x"))
        return Topology(topology, CHIPS[chip], sizes, num_slices)
    raise UserError(
        f"no TPU is called {name!r}: give a topology such as v5e:16x16 (chips: {', '.join(CHIPS)}) "
        "or an accelerator such as v4-128"
    )


def devices(topology: Topology) -> list[jax.Device]:
    """Describes the slice's devices, for which programs can be compiled but not run.

    Sets environment variables that the TPU compiler reads when it is loaded. Even on a machine with
    a TPU, only the compiler is used.
    """
    jax.config.update("jax_platforms", "cpu")
    os.environ.update(_COMPILER_ENVIRONMENT)
    import libtpu  # noqa: F401

    options = {"num_slices": topology.num_slices} if topology.num_slices > 1 else {}
    # The hosts of all other slices have four chips in a square, the default.
    if topology.num_chips == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    elif topology.chip.name in ("v5e", "v6e") and topology.shape == (2, 4):
        options["chips_per_host_bounds"] = (2, 4, 1)
    if topology.chip.name == "v4":
        # Both cores are one device, as on Cloud TPU VMs.
        options["chip_config_name"] = "megacore"
    return jax_topologies.get_topology_desc(
        topology_name=topology.name, platform="tpu", **options
    ).devices
