"""The exit status of launch/train.py."""

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "launch"

# Replaces bert_jax.main.
MAIN = """
import os, pathlib, signal, sys, time
workdir = pathlib.Path(sys.argv[1].removeprefix("--workdir="))
end = sys.argv[2]
def save(*_):
    (workdir / "saved").touch()
    sys.exit(0)
if end == "saves":
    signal.signal(signal.SIGTERM, save)
(workdir / "begun").write_text(" ".join(sys.argv[1:]))
while end in ("saves", "never"):
    time.sleep(0.01)
if end.startswith("-"):
    os.kill(os.getpid(), int(end[1:]))
sys.exit(int(end))
"""


@pytest.fixture
def start(tmp_path):
    """Starts the script; `end` sets how the training ends."""
    package = tmp_path / "bert_jax"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "main.py").write_text(MAIN)

    def run(end):
        command = [sys.executable, str(LAUNCH / "train.py"), str(tmp_path), end, "--a=b c"]
        # `python -m` searches this directory first.
        return subprocess.Popen(command, cwd=tmp_path)

    return run


def write(directory, results, config):
    for name, values in (("results.json", results), ("config.json", config)):
        if values is not None:
            (directory / name).write_text(json.dumps(values))


@pytest.mark.parametrize(
    "end, done, status",
    [("0", 60, 0), ("0", 40, 75), ("1", 60, 1), ("2", 0, 2), ("75", 0, 75), ("-6", 0, 134)],
)
def test_exit_status(start, tmp_path, end, done, status):
    write(tmp_path, {"step": done}, {"train": {"num_steps": 60}})
    assert start(end).wait(timeout=60) == status
    assert (tmp_path / "begun").read_text() == f"--workdir={tmp_path} {end} --a=b c"


@pytest.mark.parametrize("end", ["saves", "never"])
def test_signal_is_forwarded_to_the_training(start, tmp_path, end):
    """The signal may also arrive before the training has installed its handler."""
    process = start(end)
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    assert (tmp_path / "saved").exists() == (end == "saves")


@pytest.mark.parametrize(
    "results, config, expected",
    [
        ({"step": 60}, {"train": {"num_steps": 60}}, True),
        ({"step": 60}, {"train": {"num_steps": 90}}, False),
        (None, {"train": {"num_steps": 60}}, False),
        ({"step": 60}, None, False),
        ([], {"train": {"num_steps": 60}}, False),
        ({}, {"train": {"num_steps": 60}}, False),
    ],
)
def test_a_finished_run(tmp_path, results, config, expected):
    spec = importlib.util.spec_from_file_location("launch_train", LAUNCH / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    write(tmp_path, results, config)
    assert module.finished(tmp_path) is expected
    (tmp_path / "results.json").write_text("{")
    assert module.finished(tmp_path) is False
