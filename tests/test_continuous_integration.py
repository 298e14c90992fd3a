"""The README, `.ci/run` and GitHub Actions use the same command."""

import os
import re
import subprocess
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def readme_command(marker):
    """Returns the single command of the fenced block after `<!-- marker -->`."""
    blocks = re.findall(
        rf"<!-- {marker} -->\s*```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert len(blocks) == 1, f"README.md should have one bash block after <!-- {marker} -->"
    (command,) = blocks[0].strip().splitlines()
    return command


def test_first_command_of_the_readme():
    assert readme_command("run") == (
        "pip install -e . && "
        "python -m bert_jax.main --config=configs/tiny.py --workdir=/tmp/bert_tiny"
    )


def test_ci_run_ends_with_the_readmes_test_command():
    command = readme_command("test")
    assert command.startswith("pip install -e '.[test]' && ") and "pytest" in command
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash" and "set -euo pipefail" in lines
    assert lines[-1] == command
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    checked = subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], capture_output=True)
    assert checked.returncode == 0, checked.stderr


def test_workflow_runs_the_readmes_test_command_on_both_pythons():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert job["strategy"]["matrix"]["python-version"] == ["3.11", "3.12"]
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
