"""The numbers of one compiled train step, as JSON and as tables."""

import dataclasses
import importlib.metadata
import os
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from bert_jax.base.progress import empty_table
from bert_jax.tpu import hlo
from bert_jax.tpu.compilation import Compiled, gib
from bert_jax.tpu.estimate import estimate_step, kernel_seconds
from bert_jax.tpu.topologies import Topology
from bert_jax.training.stages import Stage

# Operations are attributed to source lines below this directory, if any.
_PROJECT = Path(__file__).parents[2]
_COSTLIEST = 10
# Results that are None if the step does not fit.
_ESTIMATES = (
    "collectives",
    "estimate",
    "costliest_operations",
    "estimated_step_seconds",
    "estimated_sequences_per_second_per_chip",
    "estimated_mfu",
)


def report(stage: Stage, compiled: Compiled, topology: Topology) -> dict[str, Any]:
    """Collects the numbers of one compilation; the estimates are None if it does not fit."""
    chip = topology.chip
    results = {
        "topology": topology.name,
        "slices": topology.num_slices,
        "chips": topology.num_chips,
        "stage": stage.index + 1,
        "max_seq_length": stage.max_seq_length,
        "batch_size": stage.batch_size,
        "batch_size_per_chip": stage.batch_size / topology.num_chips,
        "mesh": compiled.mesh,
        "hbm_argument_bytes": compiled.argument_bytes,
        "hbm_temporary_bytes": compiled.temporary_bytes,
        "hbm_total_bytes": compiled.total_bytes,
        "hbm_limit_bytes": chip.hbm_limit_bytes,
        "fits": compiled.fits,
        "compile_seconds": compiled.compile_seconds,
        "jax_version": jax.__version__,
        "libtpu_version": _libtpu_version(),
    }
    if not compiled.fits:
        return results | dict.fromkeys(_ESTIMATES)
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
        compiled.flops / seconds / peak,
    )
    return results | dict(zip(_ESTIMATES, values, strict=True))


def costliest(operations: list[hlo.Operation], topology: Topology) -> list[dict[str, Any]]:
    """Finds the source lines whose operations take longest, and their fractions of the total."""
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
            "fraction": seconds[source] / total,
        }
        for source in ranked
    ]


def print_report(results: dict[str, Any], topology: Topology, console: Console) -> None:
    """Prints the numbers as tables."""
    slices = f"{topology.num_slices} x " if topology.num_slices > 1 else ""
    mesh = ", ".join(f"{axis} {size}" for axis, size in results["mesh"].items())
    console.print(
        f"{slices}{topology.name}: {topology.num_chips:,} chips, mesh {mesh}; "
        f"{results['batch_size']:,} sequences of {results['max_seq_length']} tokens per step, "
        f"{results['batch_size_per_chip']:g} per chip; compiled in "
        f"{results['compile_seconds']:.0f} s"
    )
    memory = empty_table("memory per chip", "", "")
    for name in ("argument", "temporary", "total", "limit"):
        memory.add_row(name, gib(results[f"hbm_{name}_bytes"]))
    free = results["hbm_limit_bytes"] - results["hbm_total_bytes"]
    # The total may slightly exceed the limit although the compiler made the program fit.
    if results["fits"]:
        memory.add_row("fits, free", gib(max(0, free)))
    else:
        memory.add_row("too much by", gib(-free))
    console.print(memory)
    if not results["fits"]:
        return
    collectives = empty_table("collectives per step", "", "count", "MiB per chip")
    for kind, found in results["collectives"].items():
        mib = found["bytes"] * topology.chip.devices / 2**20
        collectives.add_row(kind, f"{found['count']:,}", f"{mib:,.1f}")
    if results["collectives"]:
        console.print(collectives)
    estimate = results["estimate"]
    times = empty_table("the compiler's estimate, not a measurement", "", "")
    for name, seconds in (
        ("milliseconds per step", results["estimated_step_seconds"]),
        ("  of which computing", estimate["compute_seconds"]),
        ("  of which Pallas kernels", estimate["kernel_seconds"]),
        ("  of which waiting for collectives", estimate["exposed_collective_seconds"]),
        ("collectives, hidden or not", estimate["collective_seconds"]),
    ):
        times.add_row(name, f"{1e3 * seconds:,.2f}")
    rate = results["estimated_sequences_per_second_per_chip"]
    times.add_row("sequences/s per chip", f"{rate:,.1f}")
    times.add_row("MFU", f"{results['estimated_mfu']:.1%}")
    console.print(times)
    lines = empty_table("costliest source lines", "", "million cycles", "fraction")
    for line in results["costliest_operations"]:
        lines.add_row(line["source"], f"{line['cycles'] / 1e6:,.2f}", f"{line['fraction']:.1%}")
    console.print(lines)
    if estimate["kernels_without_cost"]:
        console.print(
            f"{estimate['kernels_without_cost']:,} calls of Pallas kernels declare no cost "
            "(pl.CostEstimate) and count as zero time: the step takes longer than estimated"
        )
    if topology.num_chips > 1:
        network = " and the network between slices" if topology.num_slices > 1 else ""
        console.print(f"Not in the estimate: the latency of collectives{network}.")


def _relative(source: str) -> str:
    """Returns a source path relative to this project or to site-packages."""
    if source.startswith(f"{_PROJECT}{os.sep}"):
        return source.removeprefix(f"{_PROJECT}{os.sep}")
    return source.rpartition("site-packages/")[2] or "unknown"


def _libtpu_version() -> str | None:
    try:
        return importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        # TPU_LIBRARY_PATH points to another build.
        return None
