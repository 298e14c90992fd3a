"""The tasks that a config can name."""

import subprocess
import sys
from pathlib import Path

from bert_jax.config.finetuning import TASKS as NAMES
from bert_jax.tasks.factory import TASKS


def test_every_task_of_the_config_can_be_made():
    assert set(TASKS) == set(NAMES)


def test_tensorflow_is_not_imported():
    code = "import sys, bert_jax.tasks.factory; print(any('tensorflow' in m for m in sys.modules))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
