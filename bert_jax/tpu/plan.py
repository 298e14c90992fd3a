"""The bill of a whole run on a slice, before the first chip is rented; all times are estimates."""

from typing import Any

import jax
from ml_collections import ConfigDict
from rich.console import Console

from bert_jax import config as config_lib
from bert_jax.base import files
from bert_jax.base.progress import empty_table, terminal
from bert_jax.tpu import topologies
from bert_jax.tpu.check import refuse_too_large, with_batch_size_per_chip
from bert_jax.tpu.compilation import compile_step
from bert_jax.tpu.report import report
from bert_jax.tpu.topologies import Topology
from bert_jax.training.stages import resolve_stages


def plan(
    config: ConfigDict,
    topology: Topology,
    *,
    batch_size_per_chip: int,
    price_per_chip_hour: float | None,
    checkpoint_mb_per_second: float,
    output: str = "",
) -> None:
    """Compiles the train step of every stage for a slice, and prints what the whole run takes.

    Args:
      batch_size_per_chip: The batch of every stage; 0 for the config's own batches.
      price_per_chip_hour: None if the price is unknown.
      checkpoint_mb_per_second: The speed at which all hosts together write a checkpoint.
      output: A JSON file for the results; none if empty.

    Raises:
      UserError: The step of a stage does not fit, or cannot be sharded over the slice.
    """
    # Only the TPU's compiler is used, even on a machine with a TPU.
    jax.config.update("jax_platforms", "cpu")
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
        stages.append(report(stage, compiled, topology) | {"steps": stage.num_steps})
    results = bill(
        stages,
        state_bytes=compiled.state_bytes,
        checkpoint_every_steps=config.checkpoint.every_steps,
        checkpoint_mb_per_second=checkpoint_mb_per_second,
        price_per_chip_hour=price_per_chip_hour,
    )
    results["config"] = config_lib.to_dict(config)
    print_plan(results, terminal())
    if output:
        files.write_json(output, results)
        print(f"written to {output}")


def bill(
    stages: list[dict[str, Any]],
    *,
    state_bytes: int,
    checkpoint_every_steps: int,
    checkpoint_mb_per_second: float,
    price_per_chip_hour: float | None,
) -> dict[str, Any]:
    """Adds up the stages of a run.

    Args:
      stages: The `report` of each stage, with its number of `steps`.
      state_bytes: The size of the state, which a checkpoint holds once.
      checkpoint_every_steps, checkpoint_mb_per_second, price_per_chip_hour: See `plan`.

    Returns:
      The stages, each with its `tokens` (padding included), `hours`, `chip_hours` and `price`, the
      sums of these, and the checkpoints. A restart loses `lost_steps` and `lost_seconds` at most.
    """
    rows = []
    for stage in stages:
        hours = stage["steps"] * stage["estimated_step_seconds"] / 3600
        row = {
            "tokens": stage["steps"] * stage["batch_size"] * stage["max_seq_length"],
            "hours": hours,
            "chip_hours": hours * stage["chips"],
        }
        if price_per_chip_hour is not None:
            row["price"] = row["chip_hours"] * price_per_chip_hour
        rows.append(stage | row)
    sums = ("steps", "tokens", "hours", "chip_hours", "price")
    lost_steps = min(checkpoint_every_steps, max(stage["steps"] for stage in stages))
    return {
        "topology": stages[0]["topology"],
        "slices": stages[0]["slices"],
        "chips": stages[0]["chips"],
        "price_per_chip_hour": price_per_chip_hour,
        "stages": rows,
        "total": {name: sum(row[name] for row in rows) for name in sums if name in rows[0]},
        "checkpoint": {
            "bytes": state_bytes,
            "mb_per_second": checkpoint_mb_per_second,
            "write_seconds": state_bytes / 1e6 / checkpoint_mb_per_second,
            "every_steps": checkpoint_every_steps,
            "lost_steps": lost_steps,
            "lost_seconds": lost_steps * max(row["estimated_step_seconds"] for row in rows),
        },
    }


def print_plan(results: dict[str, Any], console: Console) -> None:
    """Prints the bill as tables."""
    slices = f"{results['slices']} x " if results["slices"] > 1 else ""
    console.print(f"{slices}{results['topology']}: {results['chips']:,} chips")
    columns = ["length", "steps", "ms a step", "hours", "chip-hours", "billion tokens"]
    price = results["price_per_chip_hour"]
    if price is not None:
        columns.append(f"price at {price:g} a chip-hour")
    table = empty_table("the whole run, as the compiler estimates it", "stage", *columns)
    for row in results["stages"]:
        cells = f"{row['max_seq_length']}", f"{1e3 * row['estimated_step_seconds']:,.1f}"
        table.add_row(str(row["stage"]), *_cells(row, *cells))
    table.add_row("total", *_cells(results["total"], "", ""))
    console.print(table)
    saved = results["checkpoint"]
    table = empty_table("checkpoints", "", "")
    table.add_row("size, GB", f"{saved['bytes'] / 1e9:,.2f}")
    speed = f"{saved['mb_per_second']:g}"
    table.add_row(f"seconds to write, at {speed} MB/s", f"{saved['write_seconds']:,.1f}")
    table.add_row("steps between two", f"{saved['every_steps']:,}")
    table.add_row("steps that a crash loses at most", f"{saved['lost_steps']:,}")
    table.add_row("minutes that a crash loses at most", f"{saved['lost_seconds'] / 60:,.1f}")
    console.print(table)
    console.print(
        "Not in the hours: the latency of collectives, input, evaluations, starts and compilations."
    )


def _cells(row: dict[str, Any], length: str, milliseconds: str) -> list[str]:
    cells = [
        length,
        f"{row['steps']:,}",
        milliseconds,
        f"{row['hours']:,.1f}",
        f"{row['chip_hours']:,.0f}",
        f"{row['tokens'] / 1e9:,.1f}",
    ]
    return cells + ([f"{row['price']:,.0f}"] if "price" in row else [])
