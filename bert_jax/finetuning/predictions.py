"""Writes the predictions of the best checkpoint."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.finetuning import task_setup
from bert_jax.finetuning.scoring import score_test
from bert_jax.parallel import multihost
from bert_jax.tasks.task import Task
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer

PREDICTIONS = "predictions"
# The SHA-256 of the rows of each split that was predicted. The file is beside the folder of
# predictions, which holds only the files of a submission.
PREDICTED = "predicted.json"


def write_predictions(
    config: ConfigDict,
    directory: epath.PathLike,
    task: Task,
    abstract_params: Any,
    predict: Callable[[Any, TokenRows], dict[str, Any] | None],
) -> dict[str, dict[str, float]]:
    """Predicts the splits of `config.eval.predict` that are not yet predicted.

    Adds the scores of test splits with labels to results.json.

    Args:
      abstract_params: Shapes, dtypes and shardings of the parameters.
      predict: (params, rows) -> outputs, or None if the run must stop.

    Returns:
      The scores that were added, by split.
    """
    directory = epath.Path(directory)
    splits = multihost.run_on_process_zero(lambda: _unpredicted(config, directory, task))
    scores: dict[str, dict[str, float]] = {}
    if not splits:
        return scores
    with closing(Checkpointer(directory / workdir.BEST, read_only=True)) as checkpoints:
        restored = checkpoints.restore_params(abstract_params)
    if restored is None:
        say(
            f"warning: no predictions are written: the best weights of {directory} have been "
            "removed"
        )
        return scores
    _, params = restored
    (directory / PREDICTIONS).mkdir(parents=True, exist_ok=True)
    for split, fingerprint in splits.items():
        outputs = predict(params, task.rows(split))
        if outputs is None:
            return scores
        scored = score_test(config, directory, task, split, outputs)
        if scored:
            scores[split] = scored
            say(f"{split} {task.metric} {scored[task.metric]:.4f}")
        if multihost.is_first():
            if scored:
                results = directory / workdir.RESULTS
                files.write_json(results, files.read_json(results) | scores)
            path = directory / PREDICTIONS / task.predictions_name(split)
            task.write_predictions(task.rows(split), outputs, path)
            files.write_json(directory / PREDICTED, _predicted(directory) | {split: fingerprint})
            say(f"predictions of the {split} split written to {path}")
    return scores


def _unpredicted(config: ConfigDict, directory: epath.Path, task: Task) -> dict[str, str]:
    """Returns the splits to predict, with the fingerprints of their rows."""
    predicted = _predicted(directory)
    todo = {}
    for split in task_setup.predicted_splits(config, task):
        fingerprint = task_setup.rows_fingerprint(task.rows(split))
        if predicted.get(split, fingerprint) != fingerprint:
            say(f"the rows of the {split} split have changed: predicting it again")
        path = directory / PREDICTIONS / task.predictions_name(split)
        if predicted.get(split) != fingerprint or not path.exists():
            todo[split] = fingerprint
    return todo


def _predicted(directory: epath.Path) -> dict[str, str]:
    """Returns the fingerprint of the rows of each split that was predicted."""
    try:
        return dict(files.read_json(directory / PREDICTED))
    except (FileNotFoundError, UserError):
        # If the file is damaged, everything is predicted again.
        return {}
