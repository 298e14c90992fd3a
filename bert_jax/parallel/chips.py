"""TPU chips: their speed, memory and links; and the peaks of GPUs."""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class Chip:
    """The properties of one TPU chip, all its cores together.

    Attributes:
      device_kinds: The names of its devices in JAX.
      devices: JAX devices per chip. Each of the two cores of v2 and v3 is a device; the two cores
        of v4 and v5p form one device.
      clock_hz: The clock of a core, which converts the compiler's cycles to seconds.
      peak_flops_per_second: Dense, bfloat16.
      hbm_limit_bytes: The memory that the compiler lets a program use; the runtime keeps the
        rest.
      ici_bytes_per_second: The bandwidth for sending over all links to neighboring chips (the
        inter-chip interconnect).
      ici_axes: The number of dimensions of the torus; each has two links.
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

# FLOP/s, memory and links are from Google's Cloud TPU documentation, which has a page for each
# version; for v2 and v3, and their clocks, from Jouppi et al., "A domain-specific supercomputer
# for training deep neural networks", CACM 2020; the clock of v4 from Jouppi et al., ISCA 2023.
# The clocks of v5e, v5p and v6e are the peak divided by the FLOPs of the matrix units in one of
# the compiler's cycles (2^17, 2^18 and 2^19). The memory limit is the number that the compiler
# of libtpu 0.0.42 names when it refuses a program ("exceeds available HBM").
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

# Dense bf16 FLOP/s of one jax device; GPUs are from the vendor's data sheets.
PEAK_FLOPS_PER_SECOND = {
    kind: chip.peak_flops_per_second / chip.devices
    for chip in CHIPS.values()
    for kind in chip.device_kinds
} | {
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}


def chip_of(device: jax.Device) -> Chip | None:
    """Returns the chip of a TPU device, or None if it is unknown."""
    return next((chip for chip in CHIPS.values() if device.device_kind in chip.device_kinds), None)


def peak_flops_per_second(device: jax.Device) -> float | None:
    """Returns the device's bf16 peak, or None if it is unknown (a CPU, a new chip)."""
    kind = device.device_kind
    # The longest matching name counts: "TPU v5 lite" is not a "TPU v5".
    names = [name for name in PEAK_FLOPS_PER_SECOND if kind.lower().startswith(name.lower())]
    return PEAK_FLOPS_PER_SECOND[max(names, key=len)] if names else None
