"""Measures how fast this machine trains a config, or makes its batches.

    python -m bert_jax.benchmark --config=configs/mini.py --what=step
    python -m bert_jax.benchmark --config=configs/mini.py --what=input

`step` times the train step on synthetic batches without padding. `input` times the input
pipeline, from the token store to batches in the host's memory.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict
from rich.table import Table

from bert_jax import config as config_lib
from bert_jax.base import files
from bert_jax.base.progress import empty_table, terminal
from bert_jax.batches.stream import PREFETCH_BATCHES
from bert_jax.commands.open_input import open_run_input
from bert_jax.commands.read_model import read_teacher
from bert_jax.config import cli
from bert_jax.parallel import multihost
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.pretraining.build import make_trainer
from bert_jax.pretraining.input import stream_spec
from bert_jax.training.stages import Stage, numbered_stage
from bert_jax.training.trainer import Trainer

# The program is compiled and buffers fill up during these steps, so they are not timed.
WARMUP_STEPS = 3


def benchmark_step(config: ConfigDict, stage_number: int, num_steps: int) -> dict[str, Any]:
    """Times the train step of one stage.

    Step n+1 is dispatched before step n is finished, as in training. A step is timed from the end
    of the step before it to its own end. `mfu` is None if the peak is unknown.
    """
    trainer = make_trainer(config, teacher=read_teacher(config))
    config_lib.check_batch(config, num_data_shards(trainer.mesh), jax.process_count())
    stage = numbered_stage(config, stage_number)
    trainer = trainer.with_model(stage.model_keys)
    state = trainer.init_state()
    local = multihost.batch_shards(trainer.layout.batch)
    rows = stage.batch_size * len(local["shards"]) // local["num_shards"]
    batches = trainer.put(synthetic_batches(trainer, stage, rows))
    pending, finished = None, []
    for _ in range(WARMUP_STEPS + num_steps + 1):
        state, metrics = trainer.train_step(state, next(batches))
        if pending is not None:
            jax.block_until_ready(pending)
            finished.append(time.perf_counter())
        pending = metrics
    jax.block_until_ready(pending)
    seconds = np.diff(finished[WARMUP_STEPS - 1 :]).tolist()
    median, peak = statistics.median(seconds), trainer.peak_flops_per_second()
    flops_per_second = trainer.flops_per_step(stage) / median
    return {
        "sequences_per_second": stage.batch_size / median,
        "tokens_per_second": stage.batch_size * stage.max_seq_length / median,
        "step_seconds_median": median,
        "step_seconds_min": min(seconds),
        "step_seconds_max": max(seconds),
        "flops_per_second": flops_per_second,
        "mfu": flops_per_second / peak if peak else None,
        "loss": float(pending["loss"]),
    }


def benchmark_input(
    config: ConfigDict, stage_number: int, num_batches: int, directory: str = ""
) -> dict[str, Any]:
    """Times the input pipeline of one stage.

    Each process makes its part of a batch. The figures count global batches.

    Args:
      directory: A work directory whose token store is read, or prepared if it is missing. If
        empty, the corpus is prepared in a temporary directory.
    """
    config_lib.check_batch(config, jax.process_count(), jax.process_count())
    stage = numbered_stage(config, stage_number)
    with tempfile.TemporaryDirectory(prefix="bert_jax_benchmark_") as scratch:
        # All processes use the directory of the first.
        directory = multihost.run_on_process_zero(str, directory or scratch)
        corpus = open_run_input(config, directory)
        stream = corpus.stream(
            stream_spec(config, stage),
            shards=(jax.process_index(),),
            num_shards=jax.process_count(),
        )
        # Batches that were made before timing begins are not counted.
        uncounted = WARMUP_STEPS + PREFETCH_BATCHES
        finished = []
        for _ in stream.batches(0, uncounted + num_batches):
            finished.append(time.perf_counter())
    total_seconds = finished[-1] - finished[uncounted - 1]
    return {
        "sequences_per_second": stage.batch_size * num_batches / total_seconds,
        "tokens_per_second": stage.batch_size * stage.max_seq_length * num_batches / total_seconds,
        "step_seconds_median": statistics.median(np.diff(finished[uncounted - 1 :]).tolist()),
        "flops_per_second": None,
        "mfu": None,
    }


def synthetic_batches(
    trainer: Trainer, stage: Stage, num_rows: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields one batch of random values forever, drawn from the declared ranges."""
    rng = np.random.default_rng(0)
    sizes, batch = stage.sizes(num_rows), {}
    for name, field in trainer.fields.items():
        high = field.limit(trainer.model_config.vocab_size, stage.max_seq_length)
        batch[name] = rng.integers(field.low, high, field.shape(*sizes)).astype(field.dtype)
    if "masked_lm_positions" in batch:
        # The positions of a row differ, as objectives expect.
        rows, count = batch["masked_lm_positions"].shape
        order = rng.random((rows, stage.max_seq_length)).argsort(axis=1)
        batch["masked_lm_positions"] = order[:, :count].astype(np.int32)
    while True:
        yield batch


def _table(what: str, stage: Stage, results: dict[str, Any]) -> Table:
    shape = f"{stage.batch_size} sequences of {stage.max_seq_length} tokens"
    table = empty_table(f"{what}: {shape} per step, {results['device']}", "", "median")
    table.add_row("sequences/s", f"{results['sequences_per_second']:,.1f}")
    table.add_row("tokens/s", f"{results['tokens_per_second']:,.0f}")
    table.add_row("milliseconds per step", f"{1000 * results['step_seconds_median']:,.2f}")
    if results["flops_per_second"]:
        table.add_row("GFLOP/s", f"{results['flops_per_second'] / 1e9:,.1f}")
        mfu = "unknown peak" if results["mfu"] is None else f"{results['mfu']:.1%}"
        table.add_row("MFU", mfu)
    return table


def define_flags() -> None:
    cli.define_config_flag()
    flags.DEFINE_enum("what", "step", ["step", "input"], "What to time.")
    flags.DEFINE_integer("stage", 1, "Which of config.train.stages, counted from 1.")
    flags.DEFINE_integer("steps", 20, "Steps, or batches, to time.", lower_bound=2)
    flags.DEFINE_string("output", "", "Also write the results to this JSON file.")
    flags.DEFINE_string("workdir", "", "For `input`: work directory of the token store.")
    cli.define_host_flags()


def main(_) -> None:
    args = flags.FLAGS
    config_lib.validate(args.config)
    with cli.joined_hosts():
        if args.what == "step":
            results = benchmark_step(args.config, args.stage, args.steps)
        else:
            results = benchmark_input(args.config, args.stage, args.steps, args.workdir)
        device = jax.devices()[0]
        results |= {
            "what": args.what,
            "stage": args.stage,
            "device": f"{len(jax.devices())} x {device.device_kind}",
            "config": config_lib.to_dict(args.config),
        }
        terminal().print(_table(args.what, numbered_stage(args.config, args.stage), results))
        if args.output and multihost.is_first():
            files.write_json(args.output, results)
            print(f"written to {args.output}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
