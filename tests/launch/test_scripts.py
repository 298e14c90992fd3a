"""Checks of every file in launch/."""

import re
import shutil
import subprocess

import pytest

from tests.launch.fakes import LAUNCH, ROOT, launch

SCRIPTS = sorted([*LAUNCH.rglob("*.sh"), *LAUNCH.rglob("*.sbatch")])
ALSO_CHECKED = [ROOT / ".ci" / "run"]
LAUNCHERS = ("tpu_vm.sh", "gke.sh", "slurm.sh", "prepare.sh")


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_has_no_complaint(tmp_path):
    command = ["shellcheck", "--external-sources", "--enable=quote-safe-variables"]
    done = subprocess.run([*command, *SCRIPTS, *ALSO_CHECKED], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    (tmp_path / "wrong.sh").write_text("#!/bin/bash\nrm $1\n")
    wrong = subprocess.run([*command, str(tmp_path / "wrong.sh")], capture_output=True)
    assert wrong.returncode == 1, "shellcheck does not report a known mistake"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_readme_names_every_flag_and_command(launcher):
    readme = (LAUNCH / "README.md").read_text()
    text = (LAUNCH / launcher).read_text()
    flags = re.findall(r"\[(\w+)\]=", text.partition("flag+=(")[2].partition("\n)")[0])
    (commands,) = re.findall(r"^commands=\((.*)\)$", text, re.MULTILINE)
    assert flags
    for flag in flags:
        assert f"--{flag}" in readme, flag
    usage = launch(launcher, "--help").stdout
    for command in commands.split():
        assert f"{launcher} {command}" in readme, command
        assert f"\n  {command} " in usage or f"\n  {command}\n" in usage, command


@pytest.mark.parametrize(
    "folder, also, entrypoint",
    [
        ("gke", {"launch"}, '["python", "launch/train.py"]'),
        ("dataflow", set(), '["/opt/apache/beam/boot"]'),
    ],
)
def test_files_of_the_images_exist(folder, also, entrypoint):
    lines = (LAUNCH / folder / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if re.match("COPY (?!--from)", line)]
    sources = {name for names in copied for name in names}
    assert sources == {"setup.py", "pyproject.toml", "README.md", "bert_jax", "configs"} | also
    ignored = (LAUNCH / folder / "Dockerfile.dockerignore").read_text().split()
    assert ignored[0] == "*" and sources == {line[1:] for line in ignored if line[0] == "!"}
    assert all((ROOT / name).exists() for name in sources)
    assert lines[-1] == f"ENTRYPOINT {entrypoint}"
