"""The exit status of `bert_jax.main` by which the scripts of launch/ know that a run goes on."""

import subprocess
import sys

import pytest

PROGRAM = """
from bert_jax import main
from bert_jax.commands import pretrain
from bert_jax.config import cli
pretrain.pretrain = lambda *_: {results}
main.define_flags()
cli.run(main.main)
"""


@pytest.mark.parametrize(
    ("results", "flags", "status"),
    [("None", ["--stopped_status=75"], 75), ("None", [], 0), ("{}", ["--stopped_status=75"], 0)],
)
def test_a_stopped_run_may_have_a_status_of_its_own(tmp_path, results, flags, status):
    command = [sys.executable, "-c", PROGRAM.format(results=results)]
    flags = ["--config=tiny", f"--workdir={tmp_path}", *flags]
    assert subprocess.run([*command, *flags], timeout=120).returncode == status
