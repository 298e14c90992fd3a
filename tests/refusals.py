"""How users are told of a mistake: by one sentence and a non-zero exit."""

import sys

import pytest

from bert_jax import cli
from tests import runs


def one_sentence(status, stderr) -> str:
    """What a command that ended so has told, without its `error: `."""
    assert status in (1, 2), stderr
    assert stderr.startswith("error: ") and stderr.count("\n") == 1, stderr
    assert "Traceback" not in stderr, stderr
    return stderr.removeprefix("error: ").strip()


def command(module, *arguments) -> str:
    """Runs a real process that must refuse; returns its one sentence."""
    finished = runs.run([sys.executable, "-m", f"bert_jax.{module}", *map(str, arguments)])
    return one_sentence(finished.returncode, finished.stderr)


def in_process(monkeypatch, capfd):
    """Runs something as a command does, in this process; returns its one sentence."""

    def run(action) -> str:
        monkeypatch.setattr(sys, "argv", ["command"])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.run(lambda _: action() and None)
        return one_sentence(stopped.value.code, capfd.readouterr().err)

    return run
