"""The exit status of `bert_jax.main` by which the scripts of launch/ know that a run goes on."""

import sys

import pytest

from tests import runs


@pytest.mark.parametrize(
    ("end", "flags", "status"),
    [
        ("stopped", ["--stopped_status=75"], 75),
        ("stopped", [], 0),
        ("ended", ["--stopped_status=75"], 0),
    ],
)
def test_a_stopped_run_may_have_a_status_of_its_own(tmp_path, end, flags, status):
    command = [sys.executable, "-m", "tests.launch.stopped", end]
    flags = ["--config=tiny", f"--workdir={tmp_path}", *flags]
    assert runs.run([*command, *flags]).returncode == status
