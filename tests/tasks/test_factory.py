"""Every task can be made from its config file."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config.finetuning import TASK_SECTIONS, TASKS
from bert_jax.errors import UserError
from bert_jax.tasks.factory import NAMES, make_task

FILES = {
    "squad": {
        "dev.json": '{"data": [{"paragraphs": [{"context": "Ann met Bo", "qas": [{"id": "q", '
        '"question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}]}]}]}]}'
    },
    "ner": {"train.txt": "Ann B-PER\n", "dev.txt": "Bo B-PER\n"},
    "multiple_choice": {
        "dev.jsonl": '{"id": "q", "question": "Who?", "answerKey": "A", '
        '"choices": {"label": ["A", "B"], "text": ["Ann", "Bo"]}}\n'
    },
    "table": {
        f"{split}.csv": "text,label\nAnn met Bo,good\nBo,bad\n" for split in ("train", "dev")
    },
}


@pytest.mark.parametrize("name", FILES)
def test_a_task_of_a_config_file(write, tokenizer, name):
    config = importlib.import_module(f"configs.finetune.{name}").get_config()
    assert config.task == name
    assert set(NAMES) == set(TASKS)
    options = config[name] if name in TASK_SECTIONS else {}
    common = {"max_seq_length": config.data.max_seq_length, "bad_rows": config.data.bad_rows}
    task = make_task(name, write(FILES[name]), tokenizer, options, **common)
    assert task.name == name and "validation" in task.splits
    rows = task.rows("validation")
    batch = rows.take(np.arange(len(rows)))
    assert batch["input_ids"].shape[-1] == config.data.max_seq_length
    # The defaults of the config are those of the task's arguments.
    defaults = inspect.signature(type(task)).parameters
    assert {key: defaults[key].default for key in options} == dict(options)


def test_the_config_of_squad_2_0():
    module = importlib.import_module("configs.finetune.squad")
    assert module.get_config("2.0").train.batch_size == 48
    with pytest.raises(UserError, match="must be squad.py:1.1 or squad.py:2.0"):
        module.get_config("3")


def test_tensorflow_is_not_imported():
    code = "import sys, bert_jax.tasks.factory; print(any('tensorflow' in m for m in sys.modules))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
