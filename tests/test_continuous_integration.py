"""The README, `.ci/run` and GitHub Actions use the same command."""

import os
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CI_RUN = ROOT / ".ci" / "run"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def readme_command(marker):
    """Returns the single command of the fenced block after `<!-- marker -->`."""
    blocks = re.findall(rf"<!-- {marker} -->\s*```bash\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 1, f"README.md should have one bash block after <!-- {marker} -->"
    (command,) = blocks[0].strip().splitlines()
    return command


def test_first_command_of_the_readme():
    assert readme_command("run") == (
        "pip install -e . && "
        "python -m bert_jax.main --config=configs/tiny.py --workdir=/tmp/bert_tiny"
    )


def pythons_of_the_readme():
    (sentence,) = re.findall(r"^On a machine with Python (.*):$", README, re.MULTILINE)
    return re.findall(r"3\.\d+", sentence)


def test_ci_run_runs_the_readmes_test_command_and_resolves_for_other_machines():
    command = readme_command("test")
    assert command.startswith("pip install -e '.[test]' && ") and "pytest" in command
    lines = CI_RUN.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash" and "set -euo pipefail" in lines
    # `run_tests` ends with the command, so its status is that of the command.
    assert lines[-6:-3] == [f"  {command}", "}", ""]
    oldest, *_, with_tensorflow, newest = pythons_of_the_readme()
    tested = [f"run_tests python{oldest}", f"run_tests python{with_tensorflow}"]
    assert lines[-3:] == ["resolve_elsewhere", *tested]
    assert f"    for version in {oldest} {newest}; do" in lines
    assert os.access(CI_RUN, os.X_OK)


@pytest.mark.parametrize("missing", ["python3.11", "python3.13"])
def test_ci_run_needs_both_pythons(missing, tmp_path):
    for name in ("python3.11", "python3.13"):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {int(name == missing)}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name))
    ended = subprocess.run([CI_RUN], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == f".ci/run needs {missing} on the PATH.\n"


def test_workflow_runs_the_readmes_test_command_on_all_pythons():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    job, smoke = workflow["jobs"]["test"], workflow["jobs"]["smoke"]
    assert job["strategy"]["matrix"]["python-version"] == pythons_of_the_readme()
    oldest, newest = (int(pythons_of_the_readme()[i].removeprefix("3.")) for i in (0, -1))
    requirement = f'python_requires=">=3.{oldest},<3.{newest + 1}"'
    assert requirement in (ROOT / "setup.py").read_text()
    assert smoke["strategy"]["matrix"]["python-version"] == [f"3.{oldest}", f"3.{newest}"]
    assert smoke["steps"][-1]["run"] == f"{readme_command('run')} --config.train.num_steps=20"
    assert job["env"]["JAX_PLATFORMS"] == "cpu"
    assert [step["run"] for step in job["steps"] if "run" in step] == [readme_command("test")]
    (python,) = [step for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert python["with"]["python-version"] == "${{ matrix.python-version }}"
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_follow_githubs_schema(path):
    """Uses SchemaStore's github-workflow.json from the package check-jsonschema."""
    schema = resources.files("check_jsonschema.builtin_schemas") / "vendor/github-workflows.json"
    validator = jsonschema.Draft7Validator(yaml.safe_load(schema.read_text()))
    # YAML 1.1 reads the key `on` as true; GitHub does not.
    workflow = {
        "on" if key is True else key: value
        for key, value in yaml.safe_load(path.read_text()).items()
    }
    errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(workflow)]
    assert not errors
    next(iter(workflow["jobs"].values())).pop("runs-on")
    assert not validator.is_valid(workflow), "the schema checks nothing"
