"""Compiles a config's train step for a TPU slice, without a TPU.

    python -m bert_jax.compile_check --config=configs/large.py --topology=v5e:16x16
    python -m bert_jax.compile_check --config=configs/large.py --topology=v4-128 \\
        --stage=2 --batch_size_per_chip=auto --output=large.json

It is the very step that training runs on such a slice, and the compiler that would compile
it there (`pip install -e '.[tpu]'`), so that memory is what it will be. The time is an
estimate, and called one: the compiler's cost model and, for collectives and Pallas
kernels, documented peaks (see `bert_jax.tpu.estimate`).

Exit status: 0 if the step fits; 1 if it does not, or for a mistake in the config.
"""

import dataclasses
import importlib.metadata
import math
import os
from pathlib import Path
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict, config_flags
from rich.console import Console
from rich.table import Table

from bert_jax import cli, storage, workdir
from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.tpu import hlo, topologies
from bert_jax.tpu.compilation import Compiled, compile_train_step
from bert_jax.tpu.estimate import estimate_step, kernel_seconds
from bert_jax.tpu.topologies import Topology
from bert_jax.training.stages import Stage, numbered_stage
from bert_jax.training.trainer import Trainer

# Where our own calls are, in the program's table of calls.
_PROJECT = Path(__file__).parents[1]
_COSTLIEST = 10
_GIB = 2**30


def compile_step(
    config: ConfigDict, topology: Topology, devices: list[jax.Device], stage_number: int
) -> tuple[Trainer, Compiled]:
    """Compiles the train step of one stage of a validated config; bytes are a chip's.

    Raises:
      UserError: the mesh, the batch or a parameter does not divide over the slice.
    """
    trainer = Trainer.from_config(config, devices=devices)
    hosts = len({device.process_index for device in devices})
    config_lib.check_batch(config, num_data_shards(trainer.mesh), hosts)
    compiled = compile_train_step(trainer, numbered_stage(config.train, stage_number))
    return trainer, compiled.on(topology.chip.devices)


def with_batch_size_per_chip(config: ConfigDict, size: int, topology: Topology) -> ConfigDict:
    """The config with so many sequences a chip in every stage."""
    # A ConfigDict's own copy would share the stages.
    config = config_lib.from_dict(config_lib.to_dict(config))
    config.train.batch_size = size * topology.num_chips
    for entry in config.train.stages:
        entry.batch_size = 0
    return config


def largest_that_fits(
    config: ConfigDict, topology: Topology, devices: list[jax.Device], stage_number: int
) -> tuple[int, dict[int, Compiled]]:
    """Finds the largest batch a chip that fits, with few compilations.

    Sizes are a power of two and quarters of it (64, 80, 96, 112), times what a chip must
    have at least for the batch to divide. Memory grows about linearly with the
    batch: two compilations tell where to look, and the size above the answer has been tried.

    Returns:
      The largest, or, if none does, the smallest; and what was tried.
    """
    trainer = Trainer.from_config(config, devices=devices)
    parts = num_data_shards(trainer.mesh) * config.train.gradient_accumulation_steps
    parts = math.lcm(parts, len({device.process_index for device in devices}))
    unit = parts // math.gcd(parts, topology.num_chips)
    sizes = sorted(
        {unit * (quarters << power) // 4 for power in range(24) for quarters in (4, 5, 6, 7)}
    )
    sizes = [size for size in sizes if size % unit == 0]
    limit = topology.chip.hbm_limit_bytes
    tried: dict[int, Compiled] = {}
    low, high = -1, len(sizes)
    # About what a BERT-large's activations allow: 8,192 tokens on 16 GB.
    length = numbered_stage(config.train, stage_number).max_seq_length
    aim = max(1, int(8192 / length * limit / (16 * _GIB)))
    while high - low > 1:
        at = max((i for i, size in enumerate(sizes) if size <= aim), default=0)
        at = min(max(at, low + 1), high - 1)
        size = sizes[at]
        sized = with_batch_size_per_chip(config, size, topology)
        _, tried[size] = compile_step(sized, topology, devices, stage_number)
        fits = tried[size].fits
        low, high = (at, high) if fits else (low, at)
        found = f"{_gib(tried[size].total_bytes)}, {'fits' if fits else 'too much'}"
        print(f"{size} a chip: {found}", flush=True)
        aim = _aim(tried, limit)
    return sizes[max(low, 0)], tried


def _aim(tried: dict[int, Compiled], limit: int) -> float:
    """The batch at which memory would be full, on a line through what was tried."""
    near = sorted(tried, key=lambda size: abs(tried[size].total_bytes - limit))[:2]
    if len(near) == 1:
        base, slope = tried[near[0]].argument_bytes, tried[near[0]].temporary_bytes / near[0]
    else:
        first, second = (tried[size].total_bytes for size in near)
        slope = (second - first) / (near[1] - near[0])
        base = first - slope * near[0]
    # A line that does not rise says nothing: the next size up, or down.
    return (limit - base) / slope if slope > 0 else max(tried) * 2


def report(
    trainer: Trainer, stage: Stage, compiled: Compiled, topology: Topology
) -> dict[str, Any]:
    """The figures of one compilation, for JSON; None where it did not fit."""
    chip = topology.chip
    results = {
        "topology": topology.name,
        "slices": topology.num_slices,
        "chips": topology.num_chips,
        "stage": stage.index + 1,
        "max_seq_length": stage.max_seq_length,
        "batch_size": stage.batch_size,
        "batch_size_per_chip": stage.batch_size / topology.num_chips,
        "mesh": dict(trainer.mesh.shape),
        "hbm_argument_bytes": compiled.argument_bytes,
        "hbm_temporary_bytes": compiled.temporary_bytes,
        "hbm_total_bytes": compiled.total_bytes,
        "hbm_limit_bytes": chip.hbm_limit_bytes,
        "fits": compiled.fits,
        "compile_seconds": compiled.compile_seconds,
        "jax_version": jax.__version__,
        "libtpu_version": _libtpu_version(),
    }
    keys = ("collectives", "estimate", "costliest_operations", "estimated_step_seconds")
    keys += ("estimated_sequences_per_second_per_chip", "estimated_mfu")
    if not compiled.fits:
        return results | dict.fromkeys(keys)
    operations = hlo.read_operations(compiled.text, within=f"{_PROJECT}{os.sep}")
    estimate = estimate_step(operations, topology)
    seconds = estimate.step_seconds
    peak = chip.peak_flops_per_second * topology.num_chips
    values = (
        hlo.collective_bytes(operations),
        dataclasses.asdict(estimate),
        costliest(operations, topology),
        seconds,
        stage.batch_size / topology.num_chips / seconds,
        trainer.flops_per_step(stage) / seconds / peak,
    )
    return results | dict(zip(keys, values, strict=True))


def costliest(operations: list[hlo.Operation], topology: Topology) -> list[dict[str, Any]]:
    """The source lines whose operations take longest, and their share of all of them."""
    seconds: dict[str, float] = {}
    for operation in operations:
        source = _relative(operation.source)
        one = operation.total_cycles / topology.chip.clock_hz
        if operation.kernel is not None:
            one += operation.executions * kernel_seconds(operation.kernel, topology)
        seconds[source] = seconds.get(source, 0.0) + one
    total = sum(seconds.values())
    ranked = sorted(seconds, key=lambda source: -seconds[source])[:_COSTLIEST]
    return [
        {
            "source": source,
            "cycles": round(seconds[source] * topology.chip.clock_hz),
            "share": seconds[source] / total,
        }
        for source in ranked
    ]


def print_report(results: dict[str, Any], topology: Topology, console: Console) -> None:
    slices = f"{topology.num_slices} x " if topology.num_slices > 1 else ""
    mesh = ", ".join(f"{axis} {size}" for axis, size in results["mesh"].items())
    console.print(
        f"{slices}{topology.name}: {topology.num_chips:,} chips, mesh {mesh}; "
        f"{results['batch_size']:,} sequences of {results['max_seq_length']} tokens a step, "
        f"{results['batch_size_per_chip']:g} a chip; compiled in {results['compile_seconds']:.0f} s"
    )
    memory = _table("memory of a chip", "")
    for name in ("argument", "temporary", "total", "limit"):
        memory.add_row(name, _gib(results[f"hbm_{name}_bytes"]))
    free = results["hbm_limit_bytes"] - results["hbm_total_bytes"]
    # Near the limit the compiler's total may pass what it has itself made to fit.
    if results["fits"]:
        memory.add_row("fits, free", _gib(max(0, free)))
    else:
        memory.add_row("too much by", _gib(-free))
    console.print(memory)
    if not results["fits"]:
        return
    collectives = _table("collectives, a step", "", "count", "MiB on a chip")
    for kind, found in results["collectives"].items():
        mib = found["bytes"] * topology.chip.devices / 2**20
        collectives.add_row(kind, f"{found['count']:,}", f"{mib:,.1f}")
    if results["collectives"]:
        console.print(collectives)
    told = results["estimate"]
    times = _table("the compiler's estimate, not a measurement", "")
    times.add_row("milliseconds a step", f"{1e3 * results['estimated_step_seconds']:,.2f}")
    times.add_row("  of which computing", f"{1e3 * told['compute_seconds']:,.2f}")
    times.add_row("  of which Pallas kernels", f"{1e3 * told['kernel_seconds']:,.2f}")
    exposed = f"{1e3 * told['exposed_collective_seconds']:,.2f}"
    times.add_row("  of which waiting for collectives", exposed)
    times.add_row("collectives, hidden or not", f"{1e3 * told['collective_seconds']:,.2f}")
    rate = results["estimated_sequences_per_second_per_chip"]
    times.add_row("sequences/s a chip", f"{rate:,.1f}")
    times.add_row("MFU", f"{results['estimated_mfu']:.1%}")
    console.print(times)
    lines = _table("costliest source lines", "", "million cycles", "share")
    for line in results["costliest_operations"]:
        lines.add_row(line["source"], f"{line['cycles'] / 1e6:,.2f}", f"{line['share']:.1%}")
    console.print(lines)
    if told["kernels_without_cost"]:
        console.print(
            f"{told['kernels_without_cost']:,} calls of Pallas kernels say nothing of their cost "
            "(pl.CostEstimate): they count as no time"
        )
    if topology.num_chips > 1:
        beyond = ", nor is the network between slices" if topology.num_slices > 1 else ""
        console.print(f"The latency of collectives is not in the estimate{beyond}.")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for column in columns or ("",):
        table.add_column(column, justify="right" if column else "left")
    if not any(columns):
        table.add_column("", justify="right")
    return table


def _relative(source: str) -> str:
    """A line of ours from the project's root, another's from its package's name."""
    if source.startswith(f"{_PROJECT}{os.sep}"):
        return source.removeprefix(f"{_PROJECT}{os.sep}")
    return source.rpartition("site-packages/")[2] or "not known"


def _libtpu_version() -> str | None:
    try:
        return importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        # Another build of it, named by TPU_LIBRARY_PATH.
        return None


def _gib(size: int) -> str:
    return f"{size / _GIB:,.2f} GiB"


def _batch_size_per_chip(given: str) -> int | None:
    """What the flag says; None is `auto`."""
    if given == "auto":
        return None
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise cli.UsageError(f"--batch_size_per_chip={given} must be auto, or 1 or more")
    return int(given)


def define_flags() -> None:
    """Called by the command line only."""
    config_flags.DEFINE_config_file("config", None, "The config file.", lock_config=True)
    flags.DEFINE_string(
        "topology",
        None,
        "The slice: v5e:16x16, v4:4x4x4, ..., or an accelerator: v5litepod-256, v4-128, ...",
        required=True,
    )
    flags.DEFINE_integer("num_slices", 1, "How many such slices.", lower_bound=1)
    flags.DEFINE_integer("stage", 1, "Which of config.train.stages, counted from 1.")
    flags.DEFINE_string(
        "batch_size_per_chip",
        "",
        "Sequences a chip and step; `auto`: the most that fit. Else the config's own batch.",
    )
    flags.DEFINE_string("output", "", "Also write the results to this JSON file.")
    flags.DEFINE_string("hlo_output", "", "Write the compiled program's text to this file.")


def main(_) -> None:
    args = flags.FLAGS
    config, given = args.config, args.batch_size_per_chip
    # Decided before anything is compiled.
    size = _batch_size_per_chip(given) if given else 0
    config_lib.validate(config)
    numbered_stage(config.train, args.stage)
    topology = topologies.find(args.topology, args.num_slices)
    # No device of this machine is used, were it a TPU.
    jax.config.update("jax_platforms", "cpu")
    devices = topologies.devices(topology)
    tried = {}
    if size is None:
        size, tried = largest_that_fits(config, topology, devices, args.stage)
    if size:
        config = with_batch_size_per_chip(config, size, topology)
    if size in tried:
        trainer, compiled = Trainer.from_config(config, devices=devices), tried[size]
    else:
        trainer, compiled = compile_step(config, topology, devices, args.stage)
    stage = numbered_stage(config.train, args.stage)
    results = report(trainer, stage, compiled, topology)
    results["tried"] = {size: step.fits for size, step in sorted(tried.items())}
    results["config"] = config_lib.to_dict(config)
    print_report(results, topology, Console())
    if args.hlo_output and compiled.fits:
        path = storage.open_path(args.hlo_output, "the file to write")
        storage.write_whole(path, compiled.text.encode())
    if args.output:
        workdir.write_json(args.output, results)
        print(f"written to {args.output}")
    if not compiled.fits:
        excess = compiled.total_bytes - topology.chip.hbm_limit_bytes
        raise UserError(
            f"{results['batch_size_per_chip']:g} sequences of {stage.max_seq_length} tokens a chip "
            f"need {_gib(compiled.total_bytes)} of memory, {_gib(excess)} more than a "
            f"{topology.chip.name} has; take a smaller batch (--batch_size_per_chip=auto finds "
            "the largest), --config.remat=full, or a sharding that divides the parameters"
        )


if __name__ == "__main__":
    define_flags()
    cli.run(main)
