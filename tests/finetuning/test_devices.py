"""Fine-tuning over several devices and processes gives the results of one device."""

import subprocess

import numpy as np
import pytest

from bert_jax.base.files import read_json
from bert_jax.commands.finetune import finetune
from bert_jax.training import workdir
from bert_jax.training.metrics import read_metrics
from tests import runs
from tests.finetuning import small
from tests.parallel.processes import finish, free_address

OVERRIDES = {
    "train.num_epochs": 2.0,
    "train.batch_size": 16,
    "eval.predict": "test",
    "log.every_steps": 1,
}
# Runs the command and reports each file of predictions that it writes.
REPORTING = """
import sys
import bert_jax.finetune as command
from bert_jax.config import cli
from bert_jax.tasks.table import TableTask

def report(task, split, outputs, path, write=TableTask.write_predictions):
    # Only the first process has a stdout.
    print(f"WRITES {path.name}", file=sys.stderr, flush=True)
    write(task, split, outputs, path)

TableTask.write_predictions = report
command.define_flags()
cli.run(command.main)
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory, bert, data):
    """Returns the work directory of a run on one device."""
    directory = tmp_path_factory.mktemp("devices")
    finetune(small.config(bert, data, **OVERRIDES), directory)
    return directory


def start(directory, bert, data, devices, *flags, **overrides):
    command = small.command(directory, bert, data, *flags, **OVERRIDES | overrides)
    command[1:3] = ["-c", REPORTING]
    # Two processes must not share a compilation cache.
    env = runs.environment(devices)
    env["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    return subprocess.Popen(
        command,
        cwd=runs.ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def losses(directory):
    return [line["loss"] for line in read_metrics(directory) if "loss" in line]


def predictions(directory):
    """Returns the labels and their probabilities [rows, labels]."""
    text = (directory / "predictions" / "test.csv").read_text()
    rows = [line.split(",") for line in text.splitlines()[1:]]
    return [row[1] for row in rows], np.array([row[2:] for row in rows], float)


def same_run(one, other):
    """Compares two runs. With dropout, another mask or batch would move losses by 1e-2 or more."""
    assert len(losses(one)) == 20
    np.testing.assert_allclose(losses(other)[0], losses(one)[0], rtol=1e-5)
    np.testing.assert_allclose(losses(other), losses(one), rtol=1e-3)
    ours, theirs = (read_json(path / workdir.RESULTS) for path in (other, one))
    assert ours["validation"] == theirs["validation"] and ours["best_step"] == theirs["best_step"]
    (labels, probabilities), (expected_labels, expected) = predictions(other), predictions(one)
    assert labels == expected_labels
    np.testing.assert_allclose(probabilities, expected, atol=1e-3)


@pytest.mark.slow
def test_eight_devices_that_share_batch_and_parameters(one, bert, data, tmp_path):
    mesh = {"sharding": "fsdp", "mesh.data": 2, "mesh.fsdp": 4}
    ((status, out, err),) = finish([start(tmp_path, bert, data, 8, **mesh)])
    assert status == 0, err
    assert "on 8 x cpu" in out
    same_run(one, tmp_path)


@pytest.mark.slow
def test_two_processes_of_which_one_writes(one, bert, data, tmp_path):
    address = free_address()
    flags = [f"--coordinator={address}", "--num_processes=2"]
    processes = [
        start(tmp_path, bert, data, 1, *flags, f"--process_id={number}") for number in range(2)
    ]
    (status, out, err), (other_status, other_out, other_err) = finish(processes)
    assert status == 0, err
    assert err.count("WRITES test.csv") == 1
    assert "on 2 x cpu" in out
    assert (other_status, other_err) == (0, "")
    # JAX's runtime prints lines of its own.
    assert all(line.startswith("[Gloo]") for line in other_out.splitlines())
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    same_run(one, tmp_path)
