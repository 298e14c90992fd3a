"""Floating-point operations of a training step, and what chips can do at best."""

import jax

from bert_jax.models import BertConfig
from bert_jax.parallel.topologies import CHIPS

# Dense bf16 FLOP/s of one jax device; of GPUs from the vendor's data sheets.
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


def train_flops_per_sequence(config: BertConfig, length: int, num_predictions: int) -> float:
    """FLOPs of forward and backward for one sequence, matrix products only.

    3 * [2 S L (4 H^2 + 2 H F) + 4 S^2 H L + 2 P (H^2 + H V) + 2 H^2], where S is
    `length` and P is `num_predictions`: a product of [m, k] and [k, n] counts 2mkn
    and the backward pass twice the forward. Padding counts as nothing saved;
    recomputation (remat) is not counted.
    """
    c, width = config, config.hidden_size
    layers = c.num_hidden_layers
    products = 2 * length * layers * (4 * width**2 + 2 * width * c.intermediate_size)
    attention = 4 * length**2 * width * layers
    mlm_head = 2 * num_predictions * (width**2 + width * c.vocab_size)
    pooler = 2 * width**2
    return 3.0 * (products + attention + mlm_head + pooler)


def peak_flops_per_second(device: jax.Device) -> float | None:
    """The device's bf16 peak, or None where none is known (a CPU, a new chip)."""
    kind = device.device_kind
    # The longest name that fits: "TPU v5 lite" is not a "TPU v5".
    names = [name for name in PEAK_FLOPS_PER_SECOND if kind.lower().startswith(name.lower())]
    return PEAK_FLOPS_PER_SECOND[max(names, key=len)] if names else None
