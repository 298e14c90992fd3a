"""The peaks of chips, by which the FLOPs of a step become its MFU."""

import jax

from bert_jax.parallel.chips import CHIPS

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


def peak_flops_per_second(device: jax.Device) -> float | None:
    """Returns the device's bf16 peak, or None if it is unknown (a CPU, a new chip)."""
    kind = device.device_kind
    # The longest matching name counts: "TPU v5 lite" is not a "TPU v5".
    names = [name for name in PEAK_FLOPS_PER_SECOND if kind.lower().startswith(name.lower())]
    return PEAK_FLOPS_PER_SECOND[max(names, key=len)] if names else None
