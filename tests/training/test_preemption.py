"""Signals to real processes."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from bert_jax.training.preemption import PreemptionGuard

CODE = """
import signal, sys, time
from bert_jax.training.preemption import PreemptionGuard
with PreemptionGuard() as guard:
    print("ready", flush=True)
    until = time.monotonic() + 30
    while not guard.requested and time.monotonic() < until:
        time.sleep(0.01)
    print(guard.signal_name, flush=True)
    if "wait" in sys.argv:
        time.sleep(2)
print("saved", flush=True)
"""


def start(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CODE), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
        # The background jobs of a shell ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_is_noted_and_the_work_is_finished(number):
    process = start()
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert output.split() == [number.name, "saved"] and process.returncode == 0


@pytest.mark.parametrize(("number", "saves"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_second_ctrl_c_ends_the_process_but_a_second_sigterm_does_not(number, saves):
    process = start("wait")
    process.send_signal(number)
    assert process.stdout.readline() == f"{number.name}\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert ("saved" in output) == saves == (process.returncode == 0)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with PreemptionGuard() as guard:
        assert not guard.requested and guard.signal_name == ""
        os.kill(os.getpid(), signal.SIGTERM)
        assert guard.requested and guard.signal_name == "SIGTERM"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_another_thread_trains_without_handlers():
    problems = []

    def work():
        try:
            with PreemptionGuard() as guard:
                assert not guard.requested
        except BaseException as error:
            problems.append(error)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not problems and signal.getsignal(signal.SIGTERM) is before
