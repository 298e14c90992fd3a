"""The compiler's options by platform and number of devices."""

import pytest

from bert_jax.parallel.compiler_options import compiler_options
from tests.parallel.fakes import slices

THRESHOLD = "xla_jf_crs_combiner_threshold_in_bytes"


@pytest.mark.parametrize(
    ("devices", "overlaps"),
    [
        (slices(), True),
        # One device has no collectives.
        (slices()[:1], False),
        # Other compilers refuse these names.
        (slices(platform="cpu", device_kind="cpu"), False),
        (slices(platform="gpu", device_kind="NVIDIA H100"), False),
    ],
)
def test_options(devices, overlaps):
    options = compiler_options(devices)
    assert (THRESHOLD in options) == bool(options) == overlaps


@pytest.mark.parametrize(
    ("kind", "is_fused", "is_offloaded"),
    [
        ("TPU v4", False, False),
        ("TPU v5 lite", True, False),
        ("TPU v5", False, True),
        ("TPU v6 lite", False, True),
        ("TPU v9", False, False),
    ],
)
def test_collectives_are_fused_on_v5e_and_offloaded_on_v5p_and_v6e(kind, is_fused, is_offloaded):
    options = compiler_options(slices(device_kind=kind))
    assert ("xla_tpu_enable_async_collective_fusion" in options) == is_fused
    offload = "xla_tpu_enable_sparse_core_collective_offload_all_gather"
    assert (offload in options) == is_offloaded
    assert options["xla_tpu_enable_all_reduce_scatter_fusion"] == is_offloaded
