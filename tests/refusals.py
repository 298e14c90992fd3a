"""Checks that a user's mistake gives one sentence and a non-zero exit status."""

import os
import sys

import pytest

from bert_jax.config import cli
from tests import runs


def one_sentence(status, stderr) -> str:
    """Returns the message of a failed command, without the leading `error: `."""
    assert status in (1, 2), stderr
    assert stderr.startswith("error: ") and stderr.count("\n") == 1, stderr
    assert "Traceback" not in stderr, stderr
    return stderr.removeprefix("error: ").strip()


def command(module, *arguments) -> str:
    """Runs a command that must fail; returns its message."""
    finished = runs.run([sys.executable, "-m", f"bert_jax.{module}", *map(str, arguments)])
    return one_sentence(finished.returncode, finished.stderr)


def in_process(monkeypatch, capfd):
    """Returns a function that runs an action like a command and returns its error message."""

    def run(action) -> str:
        monkeypatch.setattr(sys, "argv", ["command"])
        monkeypatch.setattr(os, "_exit", sys.exit)
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.run(lambda _: action() and None)
        return one_sentence(stopped.value.code, capfd.readouterr().err)

    return run
