"""TPU chips and slices by name, and their devices without a TPU.

The TPU compiler (libtpu) describes any slice that Google sells; a program can be
compiled for it on a machine that has no TPU.
"""

import dataclasses
import difflib
import importlib.util
import math
import os
import re

import jax
from jax.experimental import topologies as jax_topologies

from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Chip:
    """What one TPU chip is; all its cores together where it has several.

    Attributes:
      name: "v5e".
      device_kinds: What jax calls a device of it.
      devices: jax devices a chip: the two cores of v2 and v3 are one each; those of v4
        and v5p work as one.
      clock_hz: Of a core: what the compiler's cycles are divided by.
      peak_flops_per_second: Dense, bf16.
      hbm_limit_bytes: What the compiler lets a program have; the rest of the chip's
        memory is the runtime's.
      hbm_bytes_per_second: Of its memory.
      ici_bytes_per_second: Sent to its neighbours in the slice over all links.
      ici_axes: Dimensions of the torus: each has two of the links.
    """

    name: str
    device_kinds: tuple[str, ...]
    devices: int
    clock_hz: float
    peak_flops_per_second: float
    hbm_limit_bytes: int
    hbm_bytes_per_second: float
    ici_bytes_per_second: float
    ici_axes: int


_GIB = 2**30

# FLOP/s, memory and links: Google's Cloud TPU documentation, a page a version; for v2 and v3
# Jouppi et al., "A domain-specific supercomputer for training deep neural networks", CACM
# 2020, which gives their clocks, too; v4's is in Jouppi et al., ISCA 2023. The clocks of v5e,
# v5p and v6e are the peak divided by what the matrix units do in one of the compiler's cycles
# (2^17, 2^18 and 2^19 FLOPs). What a program may have of the memory is what the
# compiler of libtpu 0.0.42 says when it refuses one ("exceeds available HBM").
CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            name="v2",
            device_kinds=("TPU v2",),
            devices=2,
            clock_hz=700e6,
            peak_flops_per_second=45e12,
            hbm_limit_bytes=2 * int(7.48 * _GIB),
            hbm_bytes_per_second=700e9,
            ici_bytes_per_second=4 * 496e9 / 8,
            ici_axes=2,
        ),
        Chip(
            name="v3",
            device_kinds=("TPU v3",),
            devices=2,
            clock_hz=940e6,
            peak_flops_per_second=123e12,
            hbm_limit_bytes=2 * int(15.48 * _GIB),
            hbm_bytes_per_second=900e9,
            ici_bytes_per_second=4 * 656e9 / 8,
            ici_axes=2,
        ),
        Chip(
            name="v4",
            device_kinds=("TPU v4",),
            devices=1,
            clock_hz=1050e6,
            peak_flops_per_second=275e12,
            hbm_limit_bytes=int(30.75 * _GIB),
            hbm_bytes_per_second=1200e9,
            ici_bytes_per_second=2400e9 / 8,
            ici_axes=3,
        ),
        Chip(
            name="v5e",
            device_kinds=("TPU v5 lite", "TPU v5e"),
            devices=1,
            clock_hz=1500e6,
            peak_flops_per_second=197e12,
            hbm_limit_bytes=int(15.75 * _GIB),
            hbm_bytes_per_second=819e9,
            ici_bytes_per_second=1600e9 / 8,
            ici_axes=2,
        ),
        Chip(
            name="v5p",
            device_kinds=("TPU v5", "TPU v5p"),
            devices=1,
            clock_hz=1750e6,
            peak_flops_per_second=459e12,
            hbm_limit_bytes=int(95.74 * _GIB),
            hbm_bytes_per_second=2765e9,
            ici_bytes_per_second=4800e9 / 8,
            ici_axes=3,
        ),
        Chip(
            name="v6e",
            device_kinds=("TPU v6 lite", "TPU v6e"),
            devices=1,
            clock_hz=1750e6,
            peak_flops_per_second=918e12,
            hbm_limit_bytes=int(31.25 * _GIB),
            hbm_bytes_per_second=1638e9,
            ici_bytes_per_second=3200e9 / 8,
            ici_axes=2,
        ),
    )
}

_TORUS_2D = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16"}
_TORUS_2D |= {256: "16x16"}
_TORUS_3D = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8"}
_TORUS_3D |= {256: "4x8x8", 512: "8x8x8", 768: "8x8x12", 1024: "8x8x16", 2048: "8x16x16"}
_LARGEST_V5P = {4096: "16x16x16", 6144: "16x16x24"}
_POD_V2 = {4: "2x2", 16: "4x4", 64: "8x8", 128: "8x16", 256: "16x16"}
_POD_V3 = _POD_V2 | {32: "4x8", 512: "16x32", 1024: "32x32"}


def _accelerators() -> dict[str, str]:
    """Google's accelerator names and the topologies that they are shorthand for."""
    names = {}
    # From v2 to v5p a name counts cores, two a chip; v5e and v6e count chips.
    for chip, prefix, cores, slices in (
        ("v2", "v2", 2, _POD_V2),
        ("v3", "v3", 2, _POD_V3),
        ("v4", "v4", 2, _TORUS_3D),
        ("v5e", "v5litepod", 1, _TORUS_2D),
        ("v5p", "v5p", 2, _TORUS_3D | _LARGEST_V5P),
        ("v6e", "v6e", 1, _TORUS_2D),
    ):
        for chips, shape in slices.items():
            names[f"{prefix}-{chips * cores}"] = f"{chip}:{shape}"
    return names


ACCELERATORS = _accelerators()


@dataclasses.dataclass(frozen=True)
class Topology:
    """Slices of one kind.

    Attributes:
      name: "v5e:16x16".
      chip: What they consist of.
      shape: Chips along each dimension of a slice.
      num_slices: How many there are, connected by the data centre's network.
    """

    name: str
    chip: Chip
    shape: tuple[int, ...]
    num_slices: int = 1

    @property
    def num_chips(self) -> int:
        return math.prod(self.shape) * self.num_slices


def find(name: str, num_slices: int = 1) -> Topology:
    """Understands `v5e:16x16` (a chip and its slice) and `v5litepod-256` (an accelerator).

    Raises:
      UserError: the name is not known; the message has the nearest that is.
    """
    name = name.strip().lower()
    topology = ACCELERATORS.get(name, name)
    chip, _, shape = topology.partition(":")
    if chip in CHIPS and re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", shape):
        sizes = tuple(int(size) for size in shape.split("x"))
        return Topology(topology, CHIPS[chip], sizes, num_slices)
    near = _nearest(name)
    raise UserError(
        f"no TPU is called {name!r}{f' (the nearest is {near})' if near else ''}: give a "
        f"topology such as v5e:16x16 (chips: {', '.join(CHIPS)}) or an accelerator such as v4-128"
    )


def _nearest(name: str) -> str:
    generation, _, count = name.rpartition("-")
    sizes = [known for known in ACCELERATORS if known.rpartition("-")[0] == generation]
    if sizes and count.isdecimal():
        return min(sizes, key=lambda known: abs(int(known.rpartition("-")[2]) - int(count)))
    close = difflib.get_close_matches(name, [*ACCELERATORS, *ACCELERATORS.values()], 1)
    return close[0] if close else ""


def devices(topology: Topology) -> list[jax.Device]:
    """The slice's devices, to compile for; they cannot run anything.

    Sets environment variables that the TPU compiler reads when it is loaded.

    Raises:
      UserError: there is no TPU compiler here, or it knows no such slice.
    """
    if "TPU_LIBRARY_PATH" not in os.environ and importlib.util.find_spec("libtpu") is None:
        raise UserError("the TPU compiler is not installed: pip install -e '.[tpu]'")
    os.environ.update(_COMPILER_ENVIRONMENT)
    options = {"num_slices": topology.num_slices} if topology.num_slices > 1 else {}
    if bounds := _chips_per_host(topology):
        options["chips_per_host_bounds"] = bounds
    if topology.chip.name == "v4":
        # Both cores as one device: what jax finds on Cloud TPU VMs.
        options["chip_config_name"] = "megacore"
    try:
        found = jax_topologies.get_topology_desc(
            topology_name=topology.name, platform="tpu", **options
        ).devices
    except jax.errors.JaxRuntimeError as e:
        said = str(e).splitlines()[0].partition(": ")[2] or str(e)
        raise UserError(f"the TPU compiler knows no slice {topology.name}: {said}") from e
    expected = topology.num_chips * topology.chip.devices
    if len(found) != expected:
        raise RuntimeError(f"{topology.name} has {len(found)} devices, expected {expected}")
    return found


# Nothing asks Google Cloud which machine this is; several processes may compile at a time
# (no TPU is there to be shared); no line about a missing TPU on stderr.
_COMPILER_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}


def _chips_per_host(topology: Topology) -> tuple[int, int, int] | None:
    """Where it is not the usual square of four."""
    if math.prod(topology.shape) == 1:
        return (1, 1, 1)
    if topology.chip.name in ("v5e", "v6e") and topology.shape == (2, 4):
        return (2, 4, 1)
    return None
