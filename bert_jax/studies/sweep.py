"""Several runs with one command: a grid of rates, batch sizes, epochs and seeds; all of GLUE."""

import itertools
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import empty_table, say, terminal
from bert_jax.commands.finetune import finetune, open_task_setup
from bert_jax.config import check_batch
from bert_jax.config.finetuning import finetune_config, validate
from bert_jax.config.task_sections import GLUE_TASKS
from bert_jax.finetuning.build import make_stage
from bert_jax.finetuning.run import read_rows
from bert_jax.finetuning.summary import advise
from bert_jax.parallel import multihost
from bert_jax.parallel.mesh import make_mesh, num_data_shards
from bert_jax.reports.page import write_pages
from bert_jax.tasks.glue import SPECS, find_splits
from bert_jax.tasks.scores import Scores, score_text
from bert_jax.training import start, workdir
from bert_jax.training.loop import DivergedError


def sweep(config: ConfigDict, directory: epath.PathLike) -> dict[str, Any] | None:
    """Runs the grid of `config.sweep`; the results of finished runs are read from disk.

    Only the best checkpoint of the best run is kept. The grid may be widened later with other
    rates, batch sizes, numbers of epochs and seeds. A run whose loss is not finite, or whose score
    is undefined, is reported, and the sweep continues without it.

    Args:
      directory: The directory of the sweep. It gets a work directory runs/NAME/ for each run,
        sweep.json and report.html.

    Returns:
      The contents of sweep.json: `runs` with their results; `diverged`, the runs without a finite
      loss or a score, each with an `error`; `settings`, for each rate, batch size and number of
      epochs the median, lowest and highest score and the standard deviation over the seeds that did
      not diverge; `best_run`. None if the sweep was stopped before its end.
    """
    validate(config)
    directory = epath.Path(directory)
    own = config.sweep
    axes = own.learning_rates, own.batch_sizes, own.epochs, own.seeds
    grid = {
        f"rate_{rate:.12g}_batch_{size}{f'_epochs_{epochs:g}' * (epochs > 0)}_seed_{seed}": {
            "schedule.peak_learning_rate": float(rate),
            "train.batch_size": size,
            "train.num_epochs": float(epochs or config.train.num_epochs),
            "seed": seed,
        }
        for rate, size, epochs, seed in itertools.product(*axes)
    }
    with ExitStack() as stack:
        # Weights and rows are read once for all runs.
        with multihost.agreed():
            stack.enter_context(start.lock(directory))
            start.check_no_run(directory, "a sweep")
            setup = open_task_setup(config)
            read_rows(config, setup.task)
            mesh = make_mesh(config.mesh, sharding=config.sharding)
            for values in grid.values():
                # Checked now, because a wrong batch size would end the sweep hours later.
                run_config = _run_config(config, values)
                make_stage(run_config, setup.task.rows("train"))
                check_batch(run_config, num_data_shards(mesh), jax.process_count())
        runs: list[dict[str, Any]] = []
        diverged: list[dict[str, Any]] = []
        for number, (name, values) in enumerate(grid.items(), 1):
            say(f"run {number} of {len(grid)}: {name}")
            try:
                run_config = _run_config(config, values)
                results = finetune(run_config, directory / workdir.RUNS / name, setup)
                if results and results["score"] is None:
                    raise DivergedError(f"its {results['metric']} is undefined")
            except DivergedError as error:
                say(f"warning: {name}: {error}")
                diverged.append({"name": name, **values, "error": str(error)})
            else:
                if results is None:
                    return None
                runs.append({**results, **values, "name": name})
                multihost.run_on_process_zero(_remove_checkpoints, directory / workdir.RUNS, runs)
            # Compiled programs contain the learning rate of their run.
            jax.clear_caches()
    if not runs:
        raise UserError(
            f"none of the {len(grid)} runs finished with a finite loss and a score; give lower "
            f"config.sweep.learning_rates; the first: {diverged[0]['error']}"
        )
    summary = {
        "task": setup.task.name,
        "metric": setup.task.metric,
        "best_run": best_run(runs)["name"],
        "settings": summarized(runs, diverged),
        "runs": runs,
        "diverged": diverged,
    }
    if multihost.is_first():
        files.write_json(directory / workdir.SWEEP, summary)
        write_pages(directory)
        columns = (name.replace("_", " ") for name in summary["settings"][0])
        table = empty_table(f"{setup.task.name}: {setup.task.metric}", *columns)
        for setting in summary["settings"]:
            table.add_row(*(f"{value:.4g}" for value in setting.values()))
        terminal().print(table)
        best = directory / workdir.RUNS / summary["best_run"]
        print(f"best run     {best}")
        print(f"report       {directory / workdir.REPORT}, {directory / workdir.SWEEP}")
        advise(config, setup.task.head, best)
    return summary


def best_run(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Finds the run with the highest score; of equal ones the first by name, as in the report."""
    return min(runs, key=lambda run: (-run["score"], run["name"]))


def summarized(
    runs: list[dict[str, Any]], diverged: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Computes statistics over the seeds for each learning rate, batch size and number of epochs.

    They are sorted by the number of diverged seeds, then by the median, best first.
    """

    keys = {
        "learning_rate": "schedule.peak_learning_rate",
        "batch_size": "train.batch_size",
        "epochs": "train.num_epochs",
    }

    def setting_of(run: dict[str, Any]) -> tuple[float, ...]:
        return tuple(run[key] for key in keys.values())

    settings = []
    for setting in dict.fromkeys(map(setting_of, runs)):
        scores = [run["score"] for run in runs if setting_of(run) == setting]
        lost = [run for run in diverged if setting_of(run) == setting]
        settings.append(
            {
                **dict(zip(keys, setting, strict=True)),
                "seeds": len(scores),
                "diverged": len(lost),
                "median": statistics.median(scores),
                "lowest": min(scores),
                "highest": max(scores),
                "standard_deviation": statistics.stdev(scores) if len(scores) > 1 else 0.0,
            }
        )
    return sorted(settings, key=lambda setting: (setting["diverged"], -setting["median"]))


def _run_config(config: ConfigDict, values: dict[str, Any]) -> ConfigDict:
    """Makes the config of one run, whose own grid is a single point."""
    config = config.copy_and_resolve_references()
    with config.unlocked():
        config.update_from_flattened_dict(values)
        config.sweep.learning_rates = (config.schedule.peak_learning_rate,)
        config.sweep.batch_sizes = (config.train.batch_size,)
        config.sweep.epochs = (0.0,)
        config.sweep.seeds = (config.seed,)
    return config


def _remove_checkpoints(folder: epath.Path, runs: list[dict[str, Any]]) -> None:
    """Removes all checkpoints but the best one of the best run, to save disk space."""
    best = best_run(runs)["name"]
    for run in runs:
        files.remove_directory(folder / run["name"] / workdir.CHECKPOINTS)
        if run["name"] != best:
            files.remove_directory(folder / run["name"] / workdir.BEST)


def finetune_all(
    config: ConfigDict, directory: epath.PathLike, is_sweep: bool
) -> dict[str, Any] | None:
    """Fine-tunes on every task of GLUE, one after another, each in a directory named after it.

    Args:
      config: The config of the task "all", whose values apply to every task. `data.input` is
        the folder with the tasks' folders.
      directory: It gets TASK/ for each task, and glue.json.

    Returns:
      The contents of glue.json: `scores`, 100 times the validation score of each task, and their
      `average`. None if the run was stopped before its end.
    """
    directory = epath.Path(directory)
    configs = {task: task_config(config, task) for task in GLUE_TASKS}
    for task, run_config in configs.items():
        # A task without data is refused before hours of training.
        find_splits(task, run_config.data.input)
    scores = {}
    for task, run_config in configs.items():
        say(f"=== {task} ===")
        results = (sweep if is_sweep else finetune)(run_config, directory / task)
        if results is None:
            return None
        results = best_run(results["runs"]) if is_sweep else results
        scores[task] = {
            split: values[results["metric"]] and 100 * values[results["metric"]]
            for split, values in results.items()
            if split.startswith("validation")
        }
    summary = {"scores": scores, "average": average(scores)}
    if multihost.is_first():
        files.write_json(directory / workdir.GLUE, summary)
        table = empty_table("GLUE, dev sets", "task", "score", "metric")
        for task, splits in scores.items():
            cells = "/".join(score_text(score, ".1f") for score in splits.values())
            table.add_row(task, cells, SPECS[task].metric)
        table.add_row("average", score_text(summary["average"], ".1f"), "without WNLI")
        terminal().print(table)
        print(f"all scores   {directory / workdir.GLUE}")
    return summary


def task_config(config: ConfigDict, task: str) -> ConfigDict:
    """Makes the config of one task, with the values of the config for all tasks."""
    result = finetune_config(task)
    values = {key: value for key, value in config.items() if key != "task"}
    result.update(ConfigDict(values))
    folder = epath.Path(config.data.input)
    # The folders of the Hub have the names of the tasks.
    places = [folder / SPECS[task].folder, folder / task]
    result.data.input = str(next((place for place in places if place.exists()), places[0]))
    if task == "qqp":
        # Some rows of train.tsv lack a question.
        result.data.bad_rows = "skip"
    return result.lock()


def average(scores: dict[str, Scores]) -> float | None:
    """Averages the scores over all dev sets except WNLI's.

    MNLI counts twice, with its two dev sets, as in table 1 of the paper.
    """
    counted = [
        score for task, splits in scores.items() if task != "wnli" for score in splits.values()
    ]
    return None if None in counted else sum(counted) / len(counted)
