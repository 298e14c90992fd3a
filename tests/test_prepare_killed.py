"""`prepare` when it is killed, interrupted, or started twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stores import write_speeches

COMMAND = [sys.executable, "-m", "bert_jax.prepare", "--num_processes=2", "--vocab_size=1000"]


@pytest.fixture(scope="module")
def long_speeches(tmp_path_factory):
    return write_speeches(tmp_path_factory.mktemp("long") / "texts", 40, words=10**6)


def test_workers_end_with_their_parent(long_speeches, tmp_path):
    command = [*COMMAND, f"--input={long_speeches}", f"--output={tmp_path}/store"]
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    workers = wait_for(lambda: python_children(child.pid))
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))


def python_children(pid):
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        pytest.skip("needs /proc")


def wait_for(condition, seconds=20, pause=0.05):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(pause)
    return None


def test_interrupted(tmp_path):
    command = [*COMMAND, "--input=sotu", f"--output={tmp_path}/store"]
    child = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert wait_for(lambda: (tmp_path / "store").exists(), seconds=90)
    time.sleep(1)
    os.killpg(child.pid, signal.SIGINT)
    _, error = child.communicate(timeout=30)
    assert (child.returncode, error) == (130, b"interrupted\n")
    assert not (tmp_path / "store" / "metadata.json").exists()
