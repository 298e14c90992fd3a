"""Real runs of the commands, small enough for a test."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent

# A BERT of 60,000 parameters, both stages, in seconds.
TINY_RUN = {
    "model.vocab_size": 600,
    "model.hidden_size": 32,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "data.num_processes": 1,
    "data.heldout_fraction": 0.2,
    "train.num_steps": 60,
    "train.batch_size": 8,
    "train.stages[0].max_seq_length": 24,
    "train.stages[0].max_predictions_per_seq": 4,
    "train.stages[0].fraction": 0.7,
    "train.stages[1].max_seq_length": 48,
    "train.stages[1].max_predictions_per_seq": 8,
    "train.stages[1].fraction": 0.3,
    "schedule.peak_learning_rate": 3e-3,
    "schedule.warmup_steps": 10.0,
    "checkpoint.every_steps": 4,
    "eval.every_steps": 20,
    "eval.max_sequences": 32,
    "eval.batch_size": 16,
    "log.every_steps": 5,
}


def environment(devices: int = 1) -> dict[str, str]:
    """Returns a CPU user's environment, but with the tests' flags for fast compilation."""
    xla_flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return os.environ | {"JAX_PLATFORMS": "cpu", "COLUMNS": "200", "XLA_FLAGS": xla_flags}


def main_command(workdir, **overrides) -> list[str]:
    """`python -m bert_jax.main` on the small run; keys with `__` for `.`."""
    values = TINY_RUN | {key.replace("__", "."): value for key, value in overrides.items()}
    command = [sys.executable, "-m", "bert_jax.main", "--config=configs/tiny.py"]
    command.append(f"--workdir={workdir}")
    return command + [f"--config.{key}={value}" for key, value in values.items()]


def run(command: list[str], timeout: float = 300) -> subprocess.CompletedProcess:
    """Runs a command to its end, in the repository's root."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
