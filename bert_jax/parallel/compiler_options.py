"""Options of the TPU compiler for train steps."""

import jax

from bert_jax.parallel.chips import chip_of

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
    # Where all chips are along mesh.fsdp, the compiler would divide each product for the gradient
    # of a matrix into as many small ones, to send their results one after another.
    "xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000,
    # On v5e, a reduce-scatter is never asynchronous; the all-reduce that it would replace is.
    "xla_tpu_enable_all_reduce_scatter_fusion": False,
}
# These options fuse collectives with other operations. libtpu 0.0.50 and later refuse them for all
# chips but v5e, because results may be wrong.
_FUSED_ON_V5E = {
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
}
# On v5p and v6e, libtpu 0.0.50 hides only collectives that run on the SparseCores. Where sums are
# waited for, a reduce-scatter has half of the bytes of an all-reduce.
_ON_SPARSE_CORES = {
    "xla_tpu_enable_all_reduce_scatter_fusion": True,
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": True,
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": True,
}
# Without these, the scheduler delays sums of gradients to the end of the step, where nothing is
# left to compute beside them. On v5p, the estimate of a step is better with `_ON_V5P`.
_EARLY_ON_V6E = {
    "xla_tpu_rerun_latency_hiding_scheduler_post_sc_assignment": True,
    "xla_lhs_prioritize_async_depth_over_stall": "ENABLED",
    "xla_tpu_sparse_core_reduce_scatter_latency_multiplier": 3,
}
_ON_V5P = {
    "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_3d_all_gather": True,
    "xla_tpu_enable_sparse_core_reduce_scatter_v2": True,
    "xla_tpu_enable_concurrent_sparse_core_offloading": True,
    "xla_tpu_use_tc_device_shape_on_sc": True,
}
_OF_CHIPS = {
    "v5e": _FUSED_ON_V5E,
    "v5p": _ON_SPARSE_CORES | _ON_V5P,
    "v6e": _ON_SPARSE_CORES | _EARLY_ON_V6E,
}


def compiler_options(devices: list[jax.Device]) -> dict[str, bool | int | str]:
    """Returns the options of `jax.jit` for train steps on these devices; none but for TPUs."""
    if devices[0].platform != "tpu" or len(devices) == 1:
        return {}
    chip = chip_of(devices[0])
    return _OVERLAP | (_OF_CHIPS.get(chip.name, {}) if chip else {})
