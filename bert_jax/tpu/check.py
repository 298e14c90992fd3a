"""Checks whether a config's train step fits a TPU slice, and estimates its speed."""

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import terminal
from bert_jax.tpu import topologies
from bert_jax.tpu.compilation import Compiled, compile_step, gib
from bert_jax.tpu.largest_batch import largest_that_fits, with_batch_size_per_chip
from bert_jax.tpu.report import print_report, report
from bert_jax.tpu.topologies import Topology
from bert_jax.training.stages import numbered_stage


def check(
    config: ConfigDict,
    topology: Topology,
    stage_number: int,
    *,
    batch_size_per_chip: int | None,
    output: str = "",
    hlo_output: str = "",
) -> None:
    """Compiles the train step of one stage for a slice and prints a report.

    Args:
      stage_number: The stage, counted from 1.
      batch_size_per_chip: None for the largest that fits; 0 for the config's own batch.
      output: A JSON file for the results; none if empty.
      hlo_output: A file for the text of the compiled program; none if empty.

    Raises:
      UserError: The step does not fit, or cannot be sharded over the slice.
    """
    # Refuses a missing stage before minutes of compiling.
    numbered_stage(config, stage_number)
    # Only the TPU's compiler is used, even on a machine with a TPU.
    jax.config.update("jax_platforms", "cpu")
    devices = topologies.devices(topology)
    size = batch_size_per_chip
    tried: dict[int, Compiled] = {}
    if size is None:
        size, tried = largest_that_fits(config, topology, devices, stage_number)
    if size:
        config = with_batch_size_per_chip(config, size, topology)
    compiled = tried.get(size) or compile_step(config, topology, devices, stage_number)
    stage = numbered_stage(config, stage_number)
    results = report(stage, compiled, topology)
    results["tried"] = {size: step.fits for size, step in sorted(tried.items())}
    results["config"] = config_lib.to_dict(config)
    print_report(results, topology, terminal())
    if hlo_output and compiled.fits:
        path = files.checked_path(hlo_output, "the file to write")
        files.write_whole(path, compiled.text.encode())
    if output:
        files.write_json(output, results)
        print(f"written to {output}")
    if not compiled.fits:
        excess = compiled.total_bytes - topology.chip.hbm_limit_bytes
        raise UserError(
            f"{results['batch_size_per_chip']:g} sequences of {stage.max_seq_length} tokens per "
            f"chip need {gib(compiled.total_bytes)} of memory, {gib(excess)} more than a "
            f"{topology.chip.name} has; use a smaller batch (--batch_size_per_chip=auto finds "
            "the largest), --config.remat=full, or a sharding that divides the parameters"
        )
