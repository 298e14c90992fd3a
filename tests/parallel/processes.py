"""Starts runs in several processes on this machine."""

import json
import socket
import subprocess

from tests import runs

STEPS = 24
SMALL = {
    "model.vocab_size": 300,
    "model.num_hidden_layers": 1,
    "train.num_steps": STEPS,
    "train.stages[0].fraction": 1.0,
    "train.stages[1].fraction": 0.0,
    # Each process holds and saves a part of the parameters.
    "sharding": "fsdp",
    "mesh.data": 1,
    "mesh.fsdp": -1,
    # Rows differ in length, so processes read different numbers of tokens.
    "data.short_seq_prob": 0.5,
    "checkpoint.every_steps": 4,
    "checkpoint.keep": 3,
    "eval.every_steps": 10,
    "log.every_steps": 1,
}


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def start(directory, count, *, devices=1, options=None, flags=lambda number: [], **overrides):
    """Starts the processes of a run with a work directory and options of hosts_driver.

    `options` may also be a function of the process number; `flags` returns its additional flags.
    """
    address, processes = free_address(), []
    for number in range(count):
        given = options(number) if callable(options) else options or {}
        command = runs.main_command(directory, **{**SMALL, **overrides})
        command[1:3] = ["-m", "tests.parallel.hosts_driver"]
        command += [f"--coordinator={address}", f"--num_processes={count}"]
        command += [f"--process_id={number}", *flags(number)]
        processes.append(runs.start(command, devices, HOSTS_TEST=json.dumps(given)))
    return processes


def finish(processes, seconds=240):
    """Waits for the processes; returns (status, stdout, stderr) of each."""
    ended = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            raise
        ended.append((process.returncode, out, err))
    return ended


def run(*arguments, **keywords):
    ended = finish(start(*arguments, **keywords))
    # If one process fails, the runtime ends the others: only all outputs together say why.
    said = [
        f"process {n} ended with {status}: {out}\n{err}"
        for n, (status, out, err) in enumerate(ended)
    ]
    assert all(status == 0 for status, _, _ in ended), "\n".join(said)
    return ended
