"""Fine-tunes one BERT on every task of GLUE, and prints a table with the average."""

from typing import Any

from etils import epath
from ml_collections import ConfigDict
from rich.table import Table

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say, terminal
from bert_jax.config.finetuning import GLUE_TASKS, finetune_config
from bert_jax.finetuning.run import finetune
from bert_jax.finetuning.sweep import best_of, sweep
from bert_jax.parallel import multihost
from bert_jax.tasks.glue import SPECS, find_splits
from bert_jax.text.tfds import TFDS_PREFIX, open_downloaded

TABLE = "glue.json"


def finetune_all(
    config: ConfigDict, directory: epath.PathLike, is_sweep: bool
) -> dict[str, Any] | None:
    """Fine-tunes on every task of GLUE, one after another, each in a directory named after it.

    Args:
      config: The config of the task "all", whose values apply to every task. `data.input` is
        the folder with the tasks' folders, or "tfds:glue".
      directory: Receives TASK/ for each task, and glue.json.
      is_sweep: Whether to run a sweep for each task; the best run of the sweep counts.

    Returns:
      The contents of glue.json: `scores`, 100 times the validation score of each task, and their
      `average`. None if the run was stopped before its end.

    Raises:
      UserError: A task's data are missing, or as for `finetune`.
    """
    directory = epath.Path(directory)
    if not config.data.input:
        raise UserError(
            "config.data.input is missing: the folder with all GLUE tasks (glue_data), or tfds:glue"
        )
    configs = {task: task_config(config, task) for task in GLUE_TASKS}
    check_folders(configs)
    if config.eval.predict and config.data.input.startswith(TFDS_PREFIX):
        # A submission includes AX, which MNLI's model predicts.
        open_downloaded(f"{config.data.input.rstrip('/')}/ax")
    scores = {}
    for task, run_config in configs.items():
        say(f"=== {task} ===")
        results = (sweep if is_sweep else finetune)(run_config, directory / task)
        if results is None:
            return None
        results = best_of(results["runs"]) if is_sweep else results
        scores[task] = {
            split: 100 * values[results["metric"]]
            for split, values in results.items()
            if split.startswith("validation")
        }
    summary = {"scores": scores, "average": average(scores)}
    if multihost.is_first():
        files.write_json(directory / TABLE, summary)
        terminal().print(glue_table(summary))
        print(f"all scores   {directory / TABLE}")
    return summary


def task_config(config: ConfigDict, task: str) -> ConfigDict:
    """Returns the config of one task, with the values of the config for all tasks."""
    result = finetune_config(task)
    values = {key: value for key, value in config.items() if key != "task"}
    result.update(ConfigDict(values))
    source = config.data.input
    if source.startswith(TFDS_PREFIX):
        result.data.input = f"{source.rstrip('/')}/{task}"
    else:
        result.data.input = str(epath.Path(source) / SPECS[task].folder)
    if task == "qqp":
        # Some rows of train.tsv lack a question.
        result.data.bad_rows = "skip"
    return result.lock()


def check_folders(configs: dict[str, ConfigDict]) -> None:
    """Refuses a folder that lacks a task's data, before hours of training."""
    for task, config in configs.items():
        if not config.data.input.startswith(TFDS_PREFIX):
            found = find_splits(task, config.data.input)
            if config.eval.predict == "test" and not any(s.startswith("test") for s in found):
                raise UserError(
                    f"config.eval.predict is test, but {config.data.input} has no test split"
                )


def average(scores: dict[str, dict[str, float]]) -> float:
    """Returns the mean over all dev sets except WNLI's.

    MNLI counts twice, with its two dev sets, as in table 1 of the paper.
    """
    counted = [
        score for task, splits in scores.items() if task != "wnli" for score in splits.values()
    ]
    return sum(counted) / len(counted)


def glue_table(summary: dict[str, Any]) -> Table:
    """Returns a table with a row for each task and the average."""
    table = Table(title="GLUE, dev sets", title_justify="left")
    table.add_column("task")
    table.add_column("metric")
    table.add_column("score", justify="right")
    for task, splits in summary["scores"].items():
        cells = "/".join(f"{score:.1f}" for score in splits.values())
        table.add_row(task, SPECS[task].metric, cells)
    table.add_section()
    table.add_row("average", "without WNLI", f"{summary['average']:.1f}")
    return table
