"""The compiler's options by platform, number of devices and config key."""

import pytest

from bert_jax.parallel.compiler_options import compiler_options
from tests.parallel.fakes import slices

THRESHOLD = "xla_jf_crs_combiner_threshold_in_bytes"
MEMORY = "xla_tpu_scoped_vmem_limit_kib"


@pytest.mark.parametrize(
    ("devices", "overlap", "effort", "expected"),
    [
        (slices(), True, "full", {THRESHOLD}),
        (slices(), True, "fast", {THRESHOLD, MEMORY}),
        (slices(), False, "full", set()),
        # One device has no collectives.
        (slices()[:1], True, "full", set()),
        (slices()[:1], True, "fast", {MEMORY}),
        # Other compilers refuse these names.
        (slices(platform="cpu", device_kind="cpu"), True, "fast", set()),
        (slices(platform="gpu", device_kind="NVIDIA H100"), True, "fast", set()),
    ],
)
def test_options(devices, overlap, effort, expected):
    options = compiler_options(devices, overlap_collectives=overlap, effort=effort)
    assert options.keys() & {THRESHOLD, MEMORY} == expected
    assert bool(options) == bool(expected)


@pytest.mark.parametrize(
    ("kind", "is_fused"), [("TPU v4", False), ("TPU v5 lite", True), ("TPU v5", False)]
)
def test_only_v5e_fuses_collectives(kind, is_fused):
    options = compiler_options(slices(device_kind=kind), overlap_collectives=True, effort="full")
    assert ("xla_tpu_enable_async_collective_fusion" in options) == is_fused
