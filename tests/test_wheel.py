"""The package as a wheel installs it, outside the checkout."""

import subprocess
import sys

import pytest

from tests.runs import ROOT, environment

PROGRAM = """
import bert_jax
from bert_jax.config import command_line
print(bert_jax.__file__)
print(bert_jax.load_config("roberta:tiny").data.rows, bert_jax.load_config("configs/tiny.py").dtype)
print(*command_line.config_files())
"""


def test_wheel_has_the_configs_and_the_data_files(tmp_path):
    pytest.importorskip("setuptools")
    build = [sys.executable, "setup.py", "-q", "build_py", f"--build-lib={tmp_path}"]
    subprocess.run(build, cwd=ROOT, check=True)
    for name in ("py.typed", "reports/page.html", "inference/attention_page.html"):
        assert (tmp_path / "bert_jax" / name).exists(), name
    command = [sys.executable, "-c", PROGRAM]
    env = environment() | {"PYTHONPATH": str(tmp_path)}
    output = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=True)
    package, values, names = output.stdout.splitlines()
    assert package == f"{tmp_path}/bert_jax/__init__.py"
    assert values == "full_sentences float32"
    folder = ROOT / "configs"
    assert set(names.split()) == {
        file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob("*.py")
    }
