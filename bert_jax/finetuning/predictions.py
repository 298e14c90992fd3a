"""Predicts the splits of a finished run, and scores fine-tuned models on labeled files."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config.finetuning import filled_in
from bert_jax.finetuning import task_setup
from bert_jax.finetuning.batches import predict
from bert_jax.heads import load_head
from bert_jax.interop.formats import read_pretrained
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import unflatten
from bert_jax.parallel import multihost
from bert_jax.tasks import make_task
from bert_jax.tasks.scores import Scores, score_text
from bert_jax.tasks.table import positions
from bert_jax.tasks.task import Task
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.text.bad_records import BadRecords
from bert_jax.tokenizers import Tokenizer
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import CLASSES
from bert_jax.training.trainer import fit_to_devices

PREDICTIONS = "predictions"
# The SHA-256 of the rows of each split that was predicted, and its threshold, if any. The file is
# beside the folder of predictions, which holds only the files of a submission.
PREDICTED = "predicted.json"


def write_predictions(
    config: ConfigDict,
    directory: epath.PathLike,
    task: Task,
    results: Mapping[str, Any],
    abstract_params: Any,
    predict: Callable[[Any, TokenRows], dict[str, Any] | None],
) -> dict[str, Scores]:
    """Predicts the splits of `config.eval.predict` that are not yet predicted.

    Adds the scores of test splits with labels to results.json.

    Args:
      results: The results of the run, of which test splits may have a threshold.
      predict: (params, rows) -> outputs, or None if the run must stop.

    Returns:
      The scores that were added, by split.
    """
    directory = epath.Path(directory)
    tuned = task.tuned(results)
    splits = multihost.run_on_process_zero(_unpredicted, config, directory, task, tuned)
    scores: dict[str, Scores] = {}
    if not splits:
        return scores
    if not workdir.saved_steps(directory / workdir.BEST):
        # A sweep keeps the weights of its best run only.
        say(f"warning: no predictions are written: the best weights of {directory} were removed")
        return scores
    with closing(Checkpointer(directory / workdir.BEST, read_only=True)) as checkpoints:
        _, params = checkpoints.restore_params(abstract_params)
    (directory / PREDICTIONS).mkdir(parents=True, exist_ok=True)
    for split, fingerprint in splits.items():
        outputs = predict(params, task.rows(split))
        if outputs is None:
            return scores
        scored = score_test(config, directory, task, split, outputs, results)
        if scored:
            scores[split] = scored
            say(f"{split} {task.metric} {score_text(scored[task.metric])}")
        if multihost.is_first():
            if scored:
                results = directory / workdir.RESULTS
                files.write_json(results, files.read_json(results) | scores)
            path = directory / PREDICTIONS / task.predictions_name(split)
            own = tuned if split.startswith("test") else task
            own.write_predictions(task.rows(split), outputs, path)
            files.write_json(directory / PREDICTED, _predicted(directory) | {split: fingerprint})
            say(f"predictions of the {split} split written to {path}")
    return scores


def _unpredicted(
    config: ConfigDict, directory: epath.Path, task: Task, tuned: Task
) -> dict[str, str]:
    """Returns the splits to predict, with the fingerprints of their rows and their thresholds."""
    predicted = _predicted(directory)
    todo = {}
    for split in task_setup.predicted_splits(config, task):
        own = tuned if split.startswith("test") else task
        fingerprint = task_setup.rows_fingerprint(task.rows(split)) + own.settings
        if predicted.get(split, fingerprint) != fingerprint:
            say(f"the rows or the threshold of the {split} split are others: predicting it again")
        path = directory / PREDICTIONS / task.predictions_name(split)
        if predicted.get(split) != fingerprint or not path.exists():
            todo[split] = fingerprint
    return todo


def _predicted(directory: epath.Path) -> dict[str, str]:
    path = directory / PREDICTED
    return files.read_json(path) if path.exists() else {}


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
      null_threshold: That of SQuAD 2.0, instead of the model's own.

    Returns:
      The scores of the task, `step` of a run, `num_rows`, the number of sequences, and `classes`,
      the scores of each class.
    """
    directory = epath.Path(directory)
    path = files.checked_path(file, "--data")
    is_run = workdir.holds_finetuning(directory)
    pretrained = None if is_run else read_pretrained(directory, step)
    config = _config_of(pretrained) if pretrained else workdir.load_config(directory)
    folder = directory / workdir.TOKENIZER
    tokenizer = pretrained.needed_tokenizer() if pretrained else tokenizers.load(folder)
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
    task, rows = _read_labeled(config, tokenizer, path)
    if text := rows.truncated():
        say(f"warning: {text}")
    with config.unlocked():
        # The trainer needs a stage of at least one step.
        config.train.num_epochs = float(config.train.batch_size)
        fit_to_devices(config)
    trainer = task_setup.make_trainer(config, task_setup.make_stage(config, rows))
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


def _config_of(pretrained: Pretrained) -> ConfigDict:
    """Makes the config of a model that has a task head but no work directory."""
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
    described = pretrained.model, pretrained.head, labels, pretrained.family
    return filled_in(config, *described, dtype="float32")


def score_test(
    config: ConfigDict,
    directory: epath.PathLike,
    task: Task,
    split: str,
    outputs: Mapping[str, np.ndarray],
    results: Mapping[str, Any],
) -> Scores:
    """Scores a test split; the result is empty if its file has no labels.

    Args:
      task: The task of the run, which does not read the labels of a test split.
      results: The results of the run; see `Task.tuned`.
    """
    if not split.startswith("test"):
        return {}
    try:
        tokenizer = tokenizers.load(epath.Path(directory) / workdir.TOKENIZER)
        labeled, rows = _read_labeled(config, tokenizer, task.sources[split])
    except UserError as error:
        say(f"the {split} split is not scored: {error}")
        return {}
    labeled = labeled.tuned(results)
    return labeled.score(rows, outputs) if len(rows) == len(task.rows(split)) else {}


def _read_labeled(
    config: ConfigDict, tokenizer: Tokenizer, source: epath.PathLike
) -> tuple[Task, TokenRows]:
    """Returns the task of a config, and the rows of a source with labels."""
    task = make_task(config, "", tokenizer, tuple(config.labels))
    # `evaluate` has no flag that skips bad rows, so no key is named.
    return task, task.read(source, "validation", BadRecords(config.data.bad_rows))
