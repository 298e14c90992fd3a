"""Many runs of a task over a grid of rates, batches and seeds, and what came of them."""

import hashlib
import itertools
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from bert_jax import files, workdir
from bert_jax.config.finetuning import validate
from bert_jax.divergence import DivergedError
from bert_jax.errors import UserError
from bert_jax.finetuning import task_setup
from bert_jax.finetuning.run import finetune
from bert_jax.finetuning.summary import advise
from bert_jax.parallel import multihost
from bert_jax.parallel.mesh import make_mesh
from bert_jax.progress import say
from bert_jax.workdir import RUNS

# The SHA-256 of the weights that the runs begin with.
WEIGHTS = "weights.sha256"


def sweep(config: ConfigDict, directory: epath.PathLike) -> dict[str, Any] | None:
    """Runs the grid of `config.sweep`; what is finished already is only read.

    Of finished runs the checkpoints are removed, but for the best one of the best run. A sweep may
    be widened later by rates, batches and seeds; not narrowed by finished runs, since the weights
    of the best one of what is left may be among those removed. A run whose loss is not finite is
    told of and left behind.

    Args:
      config: As for `finetune`; each run has its own rate, batch and seed.
      directory: Gets runs/NAME/, a work directory each, weights.sha256 and sweep.json.

    Returns:
      What sweep.json holds: `runs`, each with its results; `diverged`, those whose loss was
      not finite, each with an `error`; `settings`, for each rate and batch the median, lowest
      and highest score and the standard deviation over the seeds that did not diverge;
      `best_run`. None when asked to stop before the end.

    Raises:
      UserError: the grid is empty or wrong, or lacks runs that are in `directory`, which began
        with other weights; all runs diverged; or as `finetune`.
    """
    validate(config)
    directory = epath.Path(directory)
    grid = list(_runs(config.sweep))
    with ExitStack() as stack:

        def opened() -> task_setup.TaskSetup:
            files.open_path(directory, "--workdir")
            stack.enter_context(workdir.lock(directory))
            workdir.check_no_run(directory)
            _check_runs(directory / RUNS, grid)
            setup = task_setup.open_task_setup(config)
            task_setup.read_rows(config, setup.task)
            mesh = make_mesh(config.mesh)
            for _, values in grid:
                # A batch that does not fit must not end the sweep hours from now.
                own = _with(config, values)
                task_setup.make_stage(own, setup.task.rows("train"))
                task_setup.check_batch(own, mesh)
            if multihost.is_first() and not config.from_scratch:
                _claim_weights(directory / WEIGHTS, config, setup.pretrained.weights)
            return setup

        # Weights and rows are read once for all.
        setup = multihost.run_on_all(opened)
        runs: list[dict[str, Any]] = []
        diverged: list[dict[str, Any]] = []
        for number, (name, values) in enumerate(grid, 1):
            say(f"run {number} of {len(grid)}: {name}")
            try:
                results = finetune(_with(config, values), directory / RUNS / name, setup)
            except DivergedError as error:
                say(f"warning: {name}: {error}")
                diverged.append({"name": name, **values, "error": str(error)})
            else:
                if results is None:
                    return None
                runs.append({"name": name, **values, **results})
                multihost.run_on_process_zero(lambda: _remove_checkpoints(directory / RUNS, runs))
            # What each run has compiled is of its own rate.
            jax.clear_caches()
    if not runs:
        raise UserError(
            f"none of the {len(grid)} runs has a finite loss to its end; give lower "
            f"config.sweep.learning_rates; the first: {diverged[0]['error']}"
        )
    summary = {
        "task": setup.task.name,
        "metric": setup.task.metric,
        "best_run": best_of(runs)["name"],
        "settings": summarized(runs, diverged),
        "runs": runs,
        "diverged": diverged,
    }
    if multihost.is_first():
        files.write_json(directory / workdir.SWEEP, summary)
        Console().print(sweep_table(summary))
        best = directory / RUNS / summary["best_run"]
        print(f"best run     {best}")
        print(f"all scores   {directory / workdir.SWEEP}")
        advise(config, best)
    return summary


def best_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of the highest score; of equal ones the first."""
    return max(runs, key=lambda run: run["score"])


def summarized(
    runs: list[dict[str, Any]], diverged: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """For each rate and batch the scores of its seeds.

    Those of which the fewest seeds diverged come first, of these the best median.
    """

    def setting_of(run: dict[str, Any]) -> tuple[float, int]:
        return run["schedule.peak_learning_rate"], run["train.batch_size"]

    settings = []
    for rate, batch_size in dict.fromkeys(map(setting_of, runs)):
        scores = [run["score"] for run in runs if setting_of(run) == (rate, batch_size)]
        lost = [run for run in diverged if setting_of(run) == (rate, batch_size)]
        settings.append(
            {
                "learning_rate": rate,
                "batch_size": batch_size,
                "seeds": len(scores),
                "diverged": len(lost),
                "median": statistics.median(scores),
                "lowest": min(scores),
                "highest": max(scores),
                "standard_deviation": statistics.stdev(scores) if len(scores) > 1 else 0.0,
            }
        )
    return sorted(settings, key=lambda setting: (setting["diverged"], -setting["median"]))


def sweep_table(summary: dict[str, Any]) -> Table:
    """Medians and spreads, the best setting first."""
    table = Table(title=f"{summary['task']}: {summary['metric']}", title_justify="left")
    columns = ("rate", "batch", "seeds", "diverged", "median", "lowest", "highest", "deviation")
    for column in columns:
        table.add_column(column, justify="right")
    for setting in summary["settings"]:
        table.add_row(
            f"{setting['learning_rate']:g}",
            str(setting["batch_size"]),
            str(setting["seeds"]),
            str(setting["diverged"]),
            *(
                f"{setting[name]:.4f}"
                for name in ("median", "lowest", "highest", "standard_deviation")
            ),
        )
    return table


def _runs(grid: ConfigDict) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the names of the runs and what each sets."""
    for rate, size, seed in itertools.product(grid.learning_rates, grid.batch_sizes, grid.seeds):
        yield (
            f"rate_{rate:.12g}_batch_{size}_seed_{seed}",
            {
                "schedule.peak_learning_rate": float(rate),
                "train.batch_size": size,
                "seed": seed,
            },
        )


def _with(config: ConfigDict, values: dict[str, Any]) -> ConfigDict:
    """A copy with the values of one run, which is the same in a wider sweep."""
    config = config.copy_and_resolve_references()
    with config.unlocked():
        config.update_from_flattened_dict(values)
        config.sweep.learning_rates = (config.schedule.peak_learning_rate,)
        config.sweep.batch_sizes = (config.train.batch_size,)
        config.sweep.seeds = (config.seed,)
    return config


def _check_runs(folder: epath.Path, grid: list[tuple[str, dict[str, Any]]]) -> None:
    # What did not come to its end, such as one that diverged, may be left out.
    there = {p.name for p in folder.glob("rate_*") if (p / workdir.RESULTS).exists()}
    if others := sorted(there - {name for name, _ in grid}):
        raise UserError(
            f"{folder} has {others[0]}, which config.sweep leaves out; a sweep may be widened, "
            "not narrowed: name its rate, batch and seed too, or choose another --workdir"
        )


def _claim_weights(path: epath.Path, config: ConfigDict, weights: dict[str, np.ndarray]) -> None:
    """Notes the encoder that the runs begin with, or refuses another than is noted."""
    digest = hashlib.sha256()
    for name in sorted(name for name in weights if name.startswith("bert/")):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights[name]).data)
    found = digest.hexdigest().encode()
    if not path.exists():
        files.write_whole(path, found)
    elif path.read_bytes() != found:
        raise UserError(
            f"the sweep in {path.parent} began with other weights than config.init_from, "
            f"{config.init_from}, holds now; choose another --workdir"
        )


def _remove_checkpoints(folder: epath.Path, runs: list[dict[str, Any]]) -> None:
    """Leaves the weights of the best run alone: a sweep's would fill a disk."""
    best = best_of(runs)["name"]
    for run in runs:
        files.remove_directory(folder / run["name"] / workdir.CHECKPOINTS)
        if run["name"] != best:
            files.remove_directory(folder / run["name"] / workdir.BEST)
