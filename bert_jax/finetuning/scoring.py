"""Scores a fine-tuned run on any labeled file."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config.finetuning import TASK_SECTIONS
from bert_jax.finetuning import task_setup
from bert_jax.finetuning.example_order import predict
from bert_jax.tasks.factory import make_task
from bert_jax.tasks.sources import TfdsSplit
from bert_jax.tasks.task import Task
from bert_jax.text.corpus import join_inputs
from bert_jax.tokenizers import Tokenizer
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer


def score_file(
    directory: epath.PathLike, file: epath.PathLike, step: int | None = None
) -> dict[str, Any]:
    """Returns the official scores of a run on a file in the format of its validation split.

    Args:
      directory: The work directory of a fine-tuning run.
      file: The labeled file.
      step: The step of the checkpoint; None for the best.

    Returns:
      The scores of the task, `step`, and `num_rows`, the number of sequences.

    Raises:
      UserError: The directory has no such checkpoint, or a row cannot be used.
    """
    directory = epath.Path(directory)
    config = workdir.load_config(directory)
    tokenizer = tokenizers.load(directory / workdir.TOKENIZER)
    if not files.open_path(file, "--data").is_file():
        raise UserError(f"--data is {file}; it must be a labeled file that exists")
    task, split = _open_labeled(config, tokenizer, file)
    rows = task.rows(split)
    if text := rows.truncated():
        say(f"warning: {text}")
    with config.unlocked():
        # The trainer needs a stage of at least one step.
        config.train.num_epochs = float(config.train.batch_size)
    trainer = task_setup.make_trainer(config, task_setup.make_stage(config, rows))
    folder = workdir.checkpoint_folder(directory, step)
    with closing(Checkpointer(folder, read_only=True)) as checkpoints:
        restored = checkpoints.restore_params(trainer.abstract_state().params, step)
    if restored is None:
        raise UserError(f"{directory} has no checkpoint yet")
    step, params = restored
    outputs = predict(
        trainer,
        params,
        rows,
        batch_size=config.eval.batch_size,
        length_multiple=config.data.length_multiple,
    )
    return {"step": step, "num_rows": len(rows), **task.score(split, outputs)}


def score_test(
    config: ConfigDict,
    directory: epath.PathLike,
    task: Task,
    split: str,
    outputs: Mapping[str, np.ndarray],
) -> dict[str, float]:
    """Returns the scores of a test split from its outputs; empty if it has no labels.

    Args:
      task: The task of the run, which does not read the labels of a test split.
      outputs: The outputs for all of its rows.
    """
    if not split.startswith("test"):
        return {}
    tokenizer = tokenizers.load(epath.Path(directory) / workdir.TOKENIZER)
    try:
        labeled, name = _open_labeled(config, tokenizer, task.sources[split])
        if len(labeled.rows(name)) != len(task.rows(split)):
            return {}
    except UserError as error:
        say(f"the {split} split is not scored: {error}")
        return {}
    return labeled.score(name, dict(outputs))


def _open_labeled(
    config: ConfigDict, tokenizer: Tokenizer, source: epath.PathLike | TfdsSplit
) -> tuple[Task, str]:
    """Returns the task of a run with other data as its validation split, and the split's name."""
    # The diagnostic set is scored by the labels of MNLI.
    name = "mnli" if config.task == "ax" else config.task
    split = "validation_matched" if name == "mnli" else "validation"
    is_tfds = isinstance(source, TfdsSplit)
    data = config.data.input if is_tfds else f"train={source},{split}={source}"
    options = dict(config[name]) if name in TASK_SECTIONS else {}
    # The labels are those of the run, whose training file may be gone.
    if name == "table":
        options["labels"] = tuple(join_inputs([label]) for label in config.labels)
    elif name == "ner":
        options["types"] = tuple(join_inputs([label[2:]]) for label in config.labels[1::2])
    task = make_task(
        name,
        data,
        tokenizer,
        options,
        max_seq_length=config.data.max_seq_length,
        bad_rows=config.data.bad_rows,
    )
    if is_tfds:
        task.sources[split], task.parts = source, ()
    try:
        task.rows(split)
    except UserError as error:
        # The advice to skip rows names a key of fine-tuning.
        raise UserError(str(error).partition(" (config.data.bad_rows=")[0]) from None
    return task, split
