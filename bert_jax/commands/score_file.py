"""Scores fine-tuned models on labeled files."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config.finetuning import filled_in
from bert_jax.finetuning.batches import predict
from bert_jax.finetuning.build import make_stage, make_trainer
from bert_jax.finetuning.predictions import read_labeled
from bert_jax.heads import load_head
from bert_jax.interop.formats import read_pretrained
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import unflatten
from bert_jax.tasks.squad_data import read_file as read_questions
from bert_jax.tasks.table import positions
from bert_jax.text.bad_records import BadRecords
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import CLASSES
from bert_jax.training.trainer import fit_to_devices


def score_file(
    directory: epath.PathLike,
    file: epath.PathLike,
    step: int | None = None,
    text_columns: Sequence[str] = (),
    label_column: str = "",
    null_threshold: float | None = None,
) -> dict[str, Any]:
    """Scores a fine-tuned model on a labeled file in the format of its validation split.

    Args:
      directory: The work directory of a run, or a directory of `transformers` with a task head.
      step: The step of a run's checkpoint; None for the best.
      text_columns: The columns of the one or two texts of a table, instead of the model's own.
      label_column: The column of the label of a table, instead of the model's own.
      null_threshold: The threshold of SQuAD 2.0, instead of the model's own.

    Returns:
      The scores of the task, `step` of a run, `num_rows`, the number of sequences, and `classes`,
      the scores of each class.
    """
    directory = epath.Path(directory)
    path = files.checked_path(file, "--data")
    if workdir.holds_finetuning(directory):
        pretrained, config = None, workdir.load_config(directory)
        tokenizer = tokenizers.load(directory / workdir.TOKENIZER)
    else:
        pretrained = read_pretrained(directory, step)
        config, tokenizer = _config_of(pretrained, path), pretrained.needed_tokenizer()
    if text_columns or label_column:
        if config.task != "table":
            raise UserError(
                f"--text_columns and --label_column have no effect on the task {config.task}; they "
                "are for tables"
            )
        with config.unlocked():
            if text_columns:
                config.table.text_column, config.table.text_b_column = (*text_columns, "")[:2]
            config.table.label_column = label_column or config.table.label_column
    if null_threshold is not None:
        if config.task != "squad" or config.squad.version != "2.0":
            raise UserError("--null_threshold is for models that were fine-tuned on SQuAD 2.0")
        with config.unlocked():
            config.squad.null_threshold = null_threshold
    task, rows = read_labeled(config, tokenizer, path)
    if text := rows.truncated():
        say(f"warning: {text}")
    with config.unlocked():
        # The trainer needs a stage of at least one step.
        config.train.num_epochs = float(config.train.batch_size)
        fit_to_devices(config)
    trainer = make_trainer(config, make_stage(config, rows), tokenizer=tokenizer)
    if pretrained:
        weights = unflatten(pretrained.weights, trainer.model_config)
        found, params = {}, jax.device_put(weights, trainer.shardings.params)
    else:
        folder = workdir.checkpoint_folder(directory, step)
        with closing(Checkpointer(folder, read_only=True)) as checkpoints:
            step, params = checkpoints.restore_params(trainer.abstract_state().params, step)
        found = {"step": step}
    size, multiple = config.eval.batch_size, config.data.length_multiple
    outputs = predict(trainer, params, rows, size, length_multiple=multiple)
    scores, classes = task.score(rows, outputs), task.class_table(rows, outputs)
    return {**found, "num_rows": len(rows), **scores, CLASSES: classes}


def _config_of(pretrained: Pretrained, path: epath.Path) -> ConfigDict:
    """Makes the config of a model that has a task head but no work directory.

    Args:
      path: The labeled file, which shows the version of SQuAD: weights do not.
    """
    stored = pretrained.training.get("config")
    if stored and workdir.is_finetuning(stored):
        return config_lib.from_stored(stored)
    task = load_head(pretrained.head).task if pretrained.head else ""
    if not task:
        raise UserError(f"{pretrained.source} has no task head that can score a labeled file")
    config, labels = config_lib.finetune_config(task), pretrained.labels
    if labels == positions(len(labels)) and not pretrained.multi_label:
        # `transformers` gives these names to labels without a name, which are numbers in files.
        labels = tuple(map(str, range(len(labels))))
    with config.unlocked():
        config.init_from = pretrained.source
        config.data.max_seq_length = min(config.data.max_seq_length, pretrained.max_length)
        if config.task == "table":
            config.table.multi_label = pretrained.multi_label
            config.table.regression = not labels
        if config.task == "squad":
            questions = read_questions(path, BadRecords("skip"))
            has_all_answers = all(question.get("answers") for _, _, question in questions)
            config.squad.version = "1.1" if has_all_answers else "2.0"
    described = pretrained.model, pretrained.head, labels, pretrained.family
    return filled_in(config, *described, dtype="float32")
