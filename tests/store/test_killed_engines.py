"""The same bytes from every engine, although a worker of each is killed."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores import digest, make, options, parts_of, write_speeches
from tests.test_prepare_killed import wait_for

PART_BYTES = 300_000
PREPARE = f"""
from bert_jax import prepare
from bert_jax.config import cli
from bert_jax.store import plan

plan.PART_BYTES = {PART_BYTES}
prepare.define_flags()
cli.run(prepare.main, words=True)
"""
DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"
ENGINES = {
    "local": ["--num_processes=2"],
    "FnApiRunner": [
        "--runner=FnApiRunner",
        *("--", "--direct_running_mode=multi_processing", "--direct_num_workers=2"),
    ],
    "DaskRunner": [f"--runner={DASK}"],
}


@pytest.fixture(scope="module")
def speeches(tmp_path_factory):
    return write_speeches(tmp_path_factory.mktemp("long") / "texts", 60, words=10**6)


@pytest.fixture(scope="module")
def store(speeches, tmp_path_factory):
    output = tmp_path_factory.mktemp("stores") / "store"
    with parts_of(PART_BYTES):
        make(options(speeches), output)
    return output


def workers_of(process):
    """Returns the processes of a session that run parts."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            session = folder.joinpath("stat").read_text().rpartition(")")[2].split()[3]
            command = folder.joinpath("cmdline").read_text()
        except OSError:
            continue
        if int(session) == process.pid and ("spawn_main" in command or "sdk_worker" in command):
            found.append(int(folder.name))
    return found


@contextlib.contextmanager
def started(command, log):
    """Yields a process that leads a session, whose processes end with the block."""
    with log.open("w") as file:
        process = subprocess.Popen(command, start_new_session=True, stdout=file, stderr=file)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(
    "name",
    ["local", *(pytest.param(n, marks=pytest.mark.slow) for n in list(ENGINES)[1:])],
)
def test_a_worker_is_killed(name, speeches, store, tmp_path):
    if "Runner" in name:
        pytest.importorskip("apache_beam")
    if name == "DaskRunner":
        pytest.importorskip("dask.distributed")
    output = tmp_path / "store"
    vocab = store / "tokenizer" / "vocab.txt"
    command = [
        *(sys.executable, "-c", PREPARE, f"--input={speeches}", f"--output={output}"),
        *(f"--vocab={vocab}", *ENGINES[name]),
    ]
    log = tmp_path / "log.txt"
    with started(command, log) as process:
        pattern = "unfinished/tokenize-*.json"
        assert wait_for(lambda: list(output.glob(pattern)), seconds=60, pause=0.001)
        os.kill(max(workers_of(process)), signal.SIGKILL)
        # FnApiRunner may wait for its worker for ever.
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(timeout=20)
            if name == "local":
                assert status == 1 and "a tokenizing process was killed" in log.read_text()
    with started(command, log) as process:
        assert process.wait(timeout=120) == 0, log.read_text()
    assert digest(output / "train") == digest(store / "train")
    assert digest(output / "heldout") == digest(store / "heldout")
