"""Runs of the real commands, small enough for a test."""

import os
import pathlib
import shlex
import subprocess
import sys
import time

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax.commands.read_model import read_teacher
from bert_jax.pretraining.build import make_trainer
from bert_jax.text.sources import built_in_files
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer
from configs import tiny
from tests import forked

ROOT = pathlib.Path(__file__).parent.parent

# A BERT of 50,000 parameters trains both stages in seconds.
TINY_RUN = {
    "model.vocab_size": 600,
    "model.hidden_size": 32,
    "model.num_hidden_layers": 1,
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
    "checkpoint.every_steps": 10,
    "eval.every_steps": 20,
    "eval.max_sequences": 32,
    "eval.batch_size": 16,
    "log.every_steps": 5,
}


def environment(devices: int = 1) -> dict[str, str]:
    """Returns the environment of a user with a CPU, with the tests' flags for fast compilation."""
    xla_flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return os.environ | {"JAX_PLATFORMS": "cpu", "COLUMNS": "200", "XLA_FLAGS": xla_flags}


def write_speeches(folder, number: int = 30) -> str:
    """Writes the first parts of State of the Union addresses; returns their glob."""
    for file in built_in_files()[:number]:
        (folder / file.name).write_bytes(file.read_bytes()[:20_000])
    return f"{folder}/*.txt"


def tiny_run(**overrides) -> ConfigDict:
    """Returns the config of the small run; `__` in a key stands for `.`."""
    config = tiny.get_config()
    config.update_from_flattened_dict(_values(overrides))
    return config


def _values(overrides: dict) -> dict:
    return TINY_RUN | {key.replace("__", "."): value for key, value in overrides.items()}


def main_command(workdir, **overrides) -> list[str]:
    """Returns `python -m bert_jax.main` for the small run, without the keys that are None."""
    values = _values(overrides)
    command = [sys.executable, "-m", "bert_jax.main", "--config=configs/tiny.py"]
    command.append(f"--workdir={workdir}")
    given = {key: value for key, value in values.items() if value is not None}
    return command + [f"--config.{key}={value}" for key, value in given.items()]


def python(command: str) -> list[str]:
    """Returns `python -m bert_jax.COMMAND` of a line for a shell."""
    name, *arguments = shlex.split(command)
    return [sys.executable, "-m", f"bert_jax.{name}", *arguments]


# Variables of long runs, for which programs should be optimized.
OPTIMIZED = {"XLA_FLAGS": ""}


def run(command: list[str], timeout: float = 300, **variables: str) -> subprocess.CompletedProcess:
    """Runs a command in the repository's root and waits for its end; see `start`."""
    if command[:2] == [sys.executable, "-m"]:
        process = start(command, **variables)
        try:
            outputs = process.communicate(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, process.returncode, *outputs)
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment() | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def succeed(command: list[str], **kwargs) -> str:
    """Runs a command that must succeed; returns its output."""
    finished = run(command, **kwargs)
    assert finished.returncode == 0, finished.stderr
    assert "Traceback" not in finished.stderr
    return finished.stdout


def start(command: list[str], devices: int = 1, **variables: str) -> forked.Program:
    """Starts a `python -m MODULE` command with additional environment variables."""
    env = environment(devices) | variables
    return forked.Program(command[2], command[3:], cwd=ROOT, env=env)


def wait_for(condition, process, seconds=120):
    """Waits until a condition holds or the process ends."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        if process.poll() is not None:
            return
        time.sleep(0.02)


def newest_checkpoint(directory) -> int:
    steps = [int(p.name) for p in (directory / "checkpoints").glob("*") if p.name.isdigit()]
    return max(steps, default=0)


def damage(directory, step) -> None:
    """Cuts the largest file of a checkpoint in half."""
    files = (directory / "checkpoints" / str(step)).rglob("*")
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


def final_state(directory):
    """Returns the state of a work directory's newest checkpoint, as numpy arrays."""
    config = workdir.load_config(directory)
    checkpointer = Checkpointer(directory / workdir.CHECKPOINTS, read_only=True)
    state, _ = checkpointer.restore_newest(
        make_trainer(config, teacher=read_teacher(config)).abstract_state()
    )
    checkpointer.close()
    return jax.tree.map(np.asarray, state)


def assert_same_bits(ours, theirs):
    for (path, one), other in zip(
        jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True
    ):
        assert one.tobytes() == other.tobytes(), jax.tree_util.keystr(path)
