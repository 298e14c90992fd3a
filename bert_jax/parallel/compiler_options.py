"""Options of the TPU compiler for train steps."""

import jax

from bert_jax.parallel.chips import CHIPS

# Sums of gradients and gathers of parameters run while the step computes.
# docs/hardware.md has the estimate of a step with and without them.
# xla_tpu_overlap_compute_collective_tc is not set: the program for v5e is the same with it, and
# others got NaN from the combination (jax-ml/jax#38741).
_OVERLAP = {
    "xla_enable_async_all_reduce": True,
    "xla_enable_async_all_gather": True,
    # By default, the gradients of all layers are summed in one collective, which waits for the
    # last of them.
    "xla_jf_crs_combiner_threshold_in_bytes": 1_000_000,
    # A reduce-scatter is never asynchronous; the all-reduce that it would replace is.
    "xla_tpu_enable_all_reduce_scatter_fusion": False,
}
# These options fuse collectives with other operations. libtpu 0.0.50 and later refuse them for all
# chips but v5e, because results may be wrong.
_FUSED_ON_V5E = {
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
}


def compiler_options(devices: list[jax.Device]) -> dict[str, bool | int]:
    """Returns the options of `jax.jit` for train steps on these devices; none but for TPUs."""
    if devices[0].platform != "tpu" or len(devices) == 1:
        return {}
    is_v5e = devices[0].device_kind in CHIPS["v5e"].device_kinds
    return _OVERLAP | (_FUSED_ON_V5E if is_v5e else {})
