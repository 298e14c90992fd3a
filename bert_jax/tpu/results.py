"""The numbers of compiled train steps and of a whole run, as JSON and as tables."""

import dataclasses
from typing import Any

from rich.console import Console

from bert_jax.base.progress import empty_table
from bert_jax.tpu import hlo
from bert_jax.tpu.compilation import Compiled, gib
from bert_jax.tpu.estimate import estimate_step
from bert_jax.tpu.topologies import Topology
from bert_jax.training.stages import Stage

# A program has at least this part of the model's FLOPs: the compiler may simplify small products.
_LEAST_FLOPS = 0.99


def step_results(stage: Stage, compiled: Compiled, topology: Topology) -> dict[str, Any]:
    """Collects the numbers of one compilation.

    Returns:
      Values that JSON can hold. The last five are None if the step does not fit, or if its program
      is not understood; then `not_estimated` is the reason.
    """
    chip = topology.chip
    results = {
        "topology": topology.name,
        "slices": topology.num_slices,
        "chips": topology.num_chips,
        "stage": stage.index + 1,
        "steps": stage.num_steps,
        "max_seq_length": stage.max_seq_length,
        "batch_size": stage.batch_size,
        "batch_size_per_chip": stage.batch_size / topology.num_chips,
        "mesh": compiled.mesh,
        "sharding": compiled.sharding,
        "hbm_argument_bytes": compiled.argument_bytes,
        "hbm_temporary_bytes": compiled.temporary_bytes,
        "hbm_total_bytes": compiled.total_bytes,
        "hbm_limit_bytes": chip.hbm_limit_bytes,
        "fits": compiled.fits,
        "compile_seconds": compiled.compile_seconds,
        "not_estimated": "",
        "collectives": None,
        "estimate": None,
        "estimated_step_seconds": None,
        "estimated_sequences_per_second_per_chip": None,
        "estimated_mfu": None,
    }
    if not compiled.fits:
        return results | {"not_estimated": "the step does not fit"}
    try:
        operations = hlo.read_operations(compiled.text)
        _check_flops(hlo.total_flops(operations), compiled, topology)
        estimate = estimate_step(operations, topology)
    # The text of a program is not an interface: new releases of libtpu change it.
    except Exception as error:
        return results | {"not_estimated": f"{type(error).__name__}: {error}"[:300]}
    seconds = estimate.step_seconds
    peak = chip.peak_flops_per_second * topology.num_chips
    return results | {
        "collectives": hlo.collective_bytes(operations),
        "estimate": dataclasses.asdict(estimate),
        "estimated_step_seconds": seconds,
        "estimated_sequences_per_second_per_chip": stage.batch_size / topology.num_chips / seconds,
        "estimated_mfu": compiled.flops / seconds / peak,
    }


def _check_flops(found: int, compiled: Compiled, topology: Topology) -> None:
    """Refuses a program in which products were overlooked, which would look too fast."""
    expected = compiled.flops / (topology.num_chips * topology.chip.devices)
    if found < _LEAST_FLOPS * expected:
        raise ValueError(
            f"the products and kernels found in the program have {found / 1e9:,.1f} GFLOP, but the "
            f"model has {expected / 1e9:,.1f}"
        )


def print_step_results(results: dict[str, Any], topology: Topology, console: Console) -> None:
    mesh = ", ".join(f"{axis} {size}" for axis, size in results["mesh"].items())
    console.print(
        f"{_slices(results)}, mesh {mesh}; "
        f"{results['batch_size']:,} sequences of {results['max_seq_length']} tokens per step, "
        f"{results['batch_size_per_chip']:g} per chip; compiled in "
        f"{results['compile_seconds']:.0f} s"
    )
    console.print(f"sharding {results['sharding']}")
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
    if results["not_estimated"]:
        console.print(f"The time is unknown: {results['not_estimated']}")
        return
    if results["collectives"]:
        collectives = empty_table("collectives per step", "", "count", "MiB per chip")
        for kind, found in results["collectives"].items():
            mib = found["bytes"] * topology.chip.devices / 2**20
            collectives.add_row(kind, f"{found['count']:,}", f"{mib:,.1f}")
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
    if topology.num_chips > 1:
        network = " and the network between slices" if topology.num_slices > 1 else ""
        console.print(f"Not in the estimate: the latency of collectives{network}.")


def bill(
    stages: list[dict[str, Any]], state_bytes: int, every_steps: int, price: float | None
) -> dict[str, Any]:
    """Adds up the stages of a run.

    Args:
      state_bytes: The size of the state, which a checkpoint holds once.

    Returns:
      The stages, each with its `tokens` (padding included) and, if the time of every stage is
      known, `hours`, `chip_hours` and `price`; the sums of these; and the checkpoints. A restart
      loses `lost_steps` and `lost_hours` at most.
    """
    is_known = not any(stage["not_estimated"] for stage in stages)
    rows = []
    for stage in stages:
        row = {"tokens": stage["steps"] * stage["batch_size"] * stage["max_seq_length"]}
        if is_known:
            row["hours"] = stage["steps"] * stage["estimated_step_seconds"] / 3600
            row["chip_hours"] = row["hours"] * stage["chips"]
            if price is not None:
                row["price"] = row["chip_hours"] * price
        rows.append(stage | row)
    sums = [name for name in ("steps", "tokens", "hours", "chip_hours", "price") if name in rows[0]]
    lost_steps = min(every_steps, max(row["steps"] for row in rows))
    checkpoint = {"bytes": state_bytes, "every_steps": every_steps, "lost_steps": lost_steps}
    if is_known:
        slowest = max(row["estimated_step_seconds"] for row in rows)
        checkpoint["lost_hours"] = lost_steps * slowest / 3600
    return {
        **{name: stages[0][name] for name in ("topology", "slices", "chips")},
        "price_per_chip_hour": price,
        "stages": rows,
        "total": {name: sum(row[name] for row in rows) for name in sums},
        "checkpoint": checkpoint,
    }


# What a bill shows of each stage: the header, the format, and the factor of the value.
_COLUMNS = {
    "max_seq_length": ("length", "d", 1),
    "steps": ("steps", ",d", 1),
    "estimated_step_seconds": ("ms a step", ",.1f", 1e3),
    "hours": ("hours", ",.1f", 1),
    "chip_hours": ("chip-hours", ",.0f", 1),
    "tokens": ("billion tokens", ",.1f", 1e-9),
    "price": ("price", ",.0f", 1),
}


def print_bill(results: dict[str, Any], console: Console) -> None:
    console.print(_slices(results))
    stages, checkpoint = results["stages"], results["checkpoint"]
    shown = {n: x for n, x in _COLUMNS.items() if any(row.get(n) is not None for row in stages)}
    headers = [header for header, _, _ in shown.values()]
    table = empty_table("the whole run, as the compiler estimates it", "stage", *headers)
    for row in [*stages, results["total"]]:
        cells = [
            "" if row.get(name) is None else format(factor * row[name], form)
            for name, (_, form, factor) in shown.items()
        ]
        table.add_row(str(row.get("stage", "total")), *cells)
    console.print(table)
    for row in stages:
        if row["not_estimated"]:
            console.print(f"The time of stage {row['stage']} is unknown: {row['not_estimated']}")
    lost = f"{checkpoint['lost_steps']:,} steps"
    if "lost_hours" in checkpoint:
        lost += f", {60 * checkpoint['lost_hours']:,.1f} minutes"
    console.print(
        f"A checkpoint has {checkpoint['bytes'] / 1e9:,.2f} GB. A crash loses at most {lost}. Not "
        "in the hours: the latency of collectives, input, evaluations, starts and compilations."
    )


def _slices(results: dict[str, Any]) -> str:
    slices = f"{results['slices']} x " if results["slices"] > 1 else ""
    return f"{slices}{results['topology']}: {results['chips']:,} chips"
