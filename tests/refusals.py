"""Checks that a user's mistake gives one sentence and a non-zero exit status."""

import sys

from tests import runs


def one_sentence(status, stderr) -> str:
    """Returns the message of a failed command, without the leading `error: `."""
    assert status in (1, 2), stderr
    assert stderr.startswith("error: ") and stderr.count("\n") == 1, stderr
    assert "--traceback shows more" not in stderr, stderr
    return stderr.removeprefix("error: ").strip()


def command(module, *arguments) -> str:
    """Runs a command that must fail; returns its message."""
    finished = runs.run([sys.executable, "-m", f"bert_jax.{module}", *map(str, arguments)])
    return one_sentence(finished.returncode, finished.stderr)
