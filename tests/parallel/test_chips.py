"""The peaks of devices."""

import types

import pytest

from bert_jax.parallel.chips import peak_flops_per_second


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("TPU v2", 22.5),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        # Unknown devices have no peak.
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_peaks(kind, tera):
    peak = peak_flops_per_second(types.SimpleNamespace(device_kind=kind))
    assert peak == (tera and tera * 1e12)
