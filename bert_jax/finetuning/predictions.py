"""Predicts the splits of a finished run."""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.parallel import multihost
from bert_jax.tasks import make_task
from bert_jax.tasks.scores import Scores, score_text
from bert_jax.tasks.task import Task
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.text.bad_records import BadRecords
from bert_jax.tokenizers import Tokenizer
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer

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
            own = tuned if split in task.test_splits else task
            own.write_predictions(task.rows(split), outputs, path)
            files.write_json(directory / PREDICTED, _predicted(directory) | {split: fingerprint})
            say(f"predictions of the {split} split written to {path}")
    return scores


def predicted_splits(config: ConfigDict, task: Task) -> list[str]:
    """Selects the splits of `config.eval.predict`, of which there must be one."""
    scored = task.scored_splits if config.eval.predict == "all" else []
    splits = [*scored, *task.test_splits] if config.eval.predict else []
    if config.eval.predict and not splits:
        raise UserError(
            f"config.eval.predict is {config.eval.predict}, but config.data.input, "
            f"{config.data.input}, has no test split; it has: " + ", ".join(task.splits)
        )
    return splits


def _unpredicted(
    config: ConfigDict, directory: epath.Path, task: Task, tuned: Task
) -> dict[str, str]:
    """Returns the splits to predict, with the fingerprints of their rows and their thresholds."""
    predicted = _predicted(directory)
    todo = {}
    for split in predicted_splits(config, task):
        own = tuned if split in task.test_splits else task
        fingerprint = task.rows(split).fingerprint() + own.settings
        if predicted.get(split, fingerprint) != fingerprint:
            say(f"the rows or the threshold of the {split} split are others: predicting it again")
        path = directory / PREDICTIONS / task.predictions_name(split)
        if predicted.get(split) != fingerprint or not path.exists():
            todo[split] = fingerprint
    return todo


def _predicted(directory: epath.Path) -> dict[str, str]:
    path = directory / PREDICTED
    return files.read_json(path) if path.exists() else {}


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
    if split not in task.test_splits:
        return {}
    try:
        tokenizer = tokenizers.load(epath.Path(directory) / workdir.TOKENIZER)
        labeled, rows = read_labeled(config, tokenizer, task.sources[split])
    except UserError as error:
        say(f"the {split} split is not scored: {error}")
        return {}
    labeled = labeled.tuned(results)
    return labeled.score(rows, outputs) if len(rows) == len(task.rows(split)) else {}


def read_labeled(
    config: ConfigDict, tokenizer: Tokenizer, source: epath.PathLike
) -> tuple[Task, TokenRows]:
    """Returns the task of a config, and the rows of a source with labels."""
    task = make_task(config, "", tokenizer, tuple(config.labels))
    # `evaluate` has no flag that skips bad rows, so no key is named.
    return task, task.read(source, "validation", BadRecords(config.data.bad_rows))
