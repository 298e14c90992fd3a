"""Checks whether the train steps of a config fit a TPU slice, and estimates their speed."""

import importlib.metadata
import math
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.parts import load_part
from bert_jax.base.progress import terminal
from bert_jax.commands.finetune import open_task_setup
from bert_jax.commands.read_model import read_teacher
from bert_jax.config.finetuning import filled_in
from bert_jax.config.task_sections import TASKS
from bert_jax.finetuning import build
from bert_jax.heads import load_head
from bert_jax.interop.formats import describe
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.pretraining.build import make_trainer
from bert_jax.tpu import topologies
from bert_jax.tpu.compilation import Compiled, compile_step, compile_trainer, gib
from bert_jax.tpu.results import bill, print_bill, print_step_results, step_results
from bert_jax.tpu.topologies import Topology
from bert_jax.training.stages import Stage, numbered_stage, resolve_stages


def check(
    config: ConfigDict,
    topology: Topology,
    stage_number: int,
    batch_size_per_chip: int | None,
    output: str,
) -> None:
    """Compiles the train step of one stage for a slice and prints a report.

    Args:
      batch_size_per_chip: None for the largest that fits; 0 for the config's own batch.
    """
    # A missing stage is refused before minutes of compiling.
    numbered_stage(config, stage_number)
    devices = topologies.devices(topology)
    size = batch_size_per_chip
    tried: dict[int, Compiled] = {}
    if size is None:
        size, tried = largest_that_fits(config, topology, devices, stage_number)
    if size:
        config = with_batch_size_per_chip(config, size, topology)
    stage = numbered_stage(config, stage_number)
    compiled = tried.get(size) or compile_step(config, topology, devices, stage)
    results = step_results(stage, compiled, topology)
    results["tried"] = {size: step.fits for size, step in sorted(tried.items())}
    print_step_results(results, topology, terminal())
    _write(results, config, output)
    refuse_too_large(stage, compiled, topology)


def check_finetuning(
    config: ConfigDict,
    topology: Topology,
    price_per_chip_hour: float | None,
    output: str,
    *,
    with_plan: bool,
) -> None:
    """Compiles the train step of embeddings or a reranker for a slice and prints a report.

    Args:
      config: A validated config of fine-tuning. Rows have as many negatives as it names columns, or
        draws in each step.
      with_plan: Reads the weights and the data, which decide the number of steps and of negatives,
        and prints what the whole run takes if all texts have the full length.
    """
    name = load_part(config.task, TASKS, "config.task").head_of(config)
    head = load_head(name)
    if not head.batch_fields:
        raise UserError(
            f"config.task is {config.task}; of fine-tuning, only the steps of embeddings and of "
            "rerankers are compiled"
        )
    devices = topologies.devices(topology)
    if with_plan:
        setup = open_task_setup(config)
        config = filled_in(config, setup.model, name, setup.task.labels, setup.family)
        stage = build.make_stage(config, setup.task.rows("train"))
    else:
        described = describe(config.init_from)
        # The width of a layer for classes is of no account.
        has_classes = "embedding" in config and config.embedding.loss == "softmax"
        labels = ("0", "1", "2") if has_classes else ()
        config = filled_in(config, described.model, name, labels, described.family)
        stage = build.only_stage(config, 1, head.num_texts(config))
    trainer = build.make_trainer(config, stage, devices=devices)
    fields = head.batch_fields(config, stage.batch_size // config.train.batch_size)
    batch = {
        field: jax.ShapeDtypeStruct(shape, dtype, sharding=trainer.layout.batch)
        for field, (shape, dtype) in fields.items()
    }
    compiled = compile_trainer(trainer, batch, topology, stage)
    results = step_results(stage, compiled, topology)
    if with_plan:
        every_steps = config.checkpoint.every_steps
        results = bill([results], compiled.state_bytes, every_steps, price_per_chip_hour)
        print_bill(results, terminal())
    else:
        print_step_results(results, topology, terminal())
    _write(results, config, output)
    refuse_too_large(stage, compiled, topology)


def plan(
    config: ConfigDict,
    topology: Topology,
    batch_size_per_chip: int,
    price_per_chip_hour: float | None,
    output: str,
) -> None:
    """Compiles the train step of every stage for a slice, and prints what the whole run takes.

    Args:
      batch_size_per_chip: The batch of every stage; 0 for the config's own batches.
    """
    devices = topologies.devices(topology)
    if batch_size_per_chip:
        config = with_batch_size_per_chip(config, batch_size_per_chip, topology)
    stages, steps = [], {}
    for stage in resolve_stages(config):
        # Stages that differ only in rates have the same step.
        if (sizes := stage.sizes(stage.batch_size)) not in steps:
            compiled = steps[sizes] = compile_step(config, topology, devices, stage)
            seconds = compiled.compile_seconds
            print(f"stage {stage.index + 1} compiled in {seconds:.0f} s", flush=True)
        compiled = steps[sizes]
        refuse_too_large(stage, compiled, topology)
        stages.append(step_results(stage, compiled, topology))
    every_steps = config.checkpoint.every_steps
    results = bill(stages, compiled.state_bytes, every_steps, price_per_chip_hour)
    print_bill(results, terminal())
    _write(results, config, output)


def _write(results: dict[str, Any], config: ConfigDict, output: str) -> None:
    about = {
        "jax_version": jax.__version__,
        "libtpu_version": importlib.metadata.version("libtpu"),
        "config": config_lib.to_dict(config),
    }
    if output:
        files.write_json(output, results | about)
        print(f"written to {output}")


def refuse_too_large(stage: Stage, compiled: Compiled, topology: Topology) -> None:
    """Refuses a step that does not fit into the memory of a chip."""
    if compiled.fits:
        return
    excess = compiled.total_bytes - topology.chip.hbm_limit_bytes
    raise UserError(
        f"{stage.batch_size / topology.num_chips:g} sequences of {stage.max_seq_length} tokens per "
        f"chip need {gib(compiled.total_bytes)} of memory, {gib(excess)} more than a "
        f"{topology.chip.name} has; use a smaller batch (--batch_size_per_chip=auto finds the "
        "largest), a larger config.train.gradient_accumulation_steps, --config.remat=full, or "
        "--config.sharding=fsdp"
    )


def with_batch_size_per_chip(config: ConfigDict, size: int, topology: Topology) -> ConfigDict:
    """Copies the config, with `size` sequences per chip in every stage."""
    # A ConfigDict's own copy would share the stages.
    config = config_lib.from_dict(config_lib.to_dict(config))
    config.train.batch_size = size * topology.num_chips
    for stage in config.train.stages:
        stage.batch_size = 0
    return config


def largest_that_fits(
    config: ConfigDict, topology: Topology, devices: list[jax.Device], stage_number: int
) -> tuple[int, dict[int, Compiled]]:
    """Finds the largest batch per chip that fits, with few compilations.

    Sizes are a power of two plus quarters of it (64, 80, 96, 112), times the smallest size
    that the slice can shard. Memory grows about linearly with the batch, which predicts the answer
    from the closest compilation. The next larger size is always tried.

    Returns:
      The largest size that fits, or the smallest size if none does; and the compiled step of each
      size tried.
    """
    trainer = make_trainer(config, devices, read_teacher(config))
    parts = num_data_shards(trainer.mesh) * config.train.gradient_accumulation_steps
    parts = math.lcm(parts, len({device.process_index for device in devices}))
    unit = parts // math.gcd(parts, topology.num_chips)
    multiples = {(quarters << power) / 4 for power in range(24) for quarters in (4, 5, 6, 7)}
    sizes = [unit * int(multiple) for multiple in sorted(multiples) if multiple.is_integer()]
    limit = topology.chip.hbm_limit_bytes
    tried: dict[int, Compiled] = {}
    low, high = -1, len(sizes)
    # The first guess comes from BERT-large: 8,192 tokens fit in 16 GiB.
    length = numbered_stage(config, stage_number).max_seq_length
    aim = 8192 / length * limit / 2**34
    while high - low > 1:
        index = max((i for i, size in enumerate(sizes) if size <= aim), default=0)
        index = min(max(index, low + 1), high - 1)
        size = sizes[index]
        sized = with_batch_size_per_chip(config, size, topology)
        stage = numbered_stage(sized, stage_number)
        step = tried[size] = compile_step(sized, topology, devices, stage)
        low, high = (index, high) if step.fits else (low, index)
        verdict = "fits" if step.fits else "does not fit"
        print(f"{size} per chip: {gib(step.total_bytes)}, {verdict}", flush=True)
        # All memory but that of the state grows with the batch.
        near = min(tried, key=lambda size: abs(tried[size].total_bytes - limit))
        free = limit - tried[near].argument_bytes
        aim = near * free / max(1, tried[near].temporary_bytes)
    return sizes[max(low, 0)], tried
