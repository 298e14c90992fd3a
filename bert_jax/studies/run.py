"""Runs a study: each of its runs is a command of the package in its own process."""

import contextlib
import copy
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from absl import flags
from etils import epath
from ml_collections import ConfigDict
from rich.table import Table

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import empty_table, say, terminal
from bert_jax.config import cli, finetuning, validate
from bert_jax.config.command_line import ABSL_FLAGS, UsageError, parse
from bert_jax.config.task_sections import GLUE_TASKS
from bert_jax.reports.curves import LOWEST
from bert_jax.reports.page import Cell, facts_of, names_of, page, ranked, settings_of
from bert_jax.reports.record import RunRecord, read_runs
from bert_jax.studies.scores import with_scores
from bert_jax.training import workdir
from bert_jax.training.start import check_no_run

# The directory of a finished run has one of these files.
_RESULTS = (workdir.RESULTS, workdir.SWEEP, workdir.GLUE)
_COST = ("parameters", "steps", "training time", "model FLOPs")
# The width of a table if there is no terminal.
_FILE_WIDTH = 160


def compare(study: ConfigDict, directory: epath.PathLike) -> None:
    """Runs or continues a study, and compares its runs.

    The flags of all runs are checked before the first starts. Every run keeps its own rules: a
    finished run says so and ends, and a run whose config has changed is refused.

    Args:
      directory: It gets a work directory for each run, and at the end report.html about the
        pre-trainings and report_TASK.html about the fine-tunings on each task.
    """
    path = epath.Path(files.checked_path(directory, "--workdir"))
    check_no_run(path, "a study")
    commands = {}
    for line in study.runs:
        name, command, *flags = shlex.split(line)
        if name in commands:
            raise UserError(f"two runs of the study are named {name!r}: give each its own name")
        if "/" in name:
            raise UserError(f"a run of the study is named {name!r}: a name has no /")
        if command not in ("main", "finetune"):
            raise UserError(f"the command of {name} is {command!r}; it must be main or finetune")
        # A flag of all runs replaces the same flag of one.
        own = {flag.partition("=")[0]: flag for flag in [*flags, *study[command]]}
        if "--workdir" in own:
            raise UserError(f"{name} has {own['--workdir']}: a study gives each run its directory")
        words = [flag.replace("{study}", str(path)) for flag in own.values()]
        commands[name] = [command, *words, f"--workdir={path / name}"]
    for name, (command, *words) in commands.items():
        try:
            _check_flags(command, words)
        except (UserError, UsageError) as error:
            raise UserError(f"{name} (python -m bert_jax.{command}): {error}") from error
    path.mkdir(parents=True, exist_ok=True)
    running: list[subprocess.Popen] = []
    with _stop_signals(running) as signals:
        for number, (name, (command, *words)) in enumerate(commands.items(), 1):
            say(f"run {number} of {len(commands)}: {name}")
            argv = [sys.executable, "-m", f"bert_jax.{command}", *words]
            with subprocess.Popen(argv) as process:
                running[:] = [process]
                if signals:
                    process.terminate()
            if signals:
                say(f"Stopped by {signals[0]}: run the same command to continue.")
                return
            # A run that got a signal of its own ends with status 0, but without results.
            is_finished = any((path / name / file).exists() for file in _RESULTS)
            if process.returncode or not is_finished:
                raise UserError(
                    f"{name} ended with exit status {process.returncode} before it was finished; "
                    "the same command continues the study"
                )
    _report([run for name in commands for run in read_runs(path / name)], path)


def _check_flags(command: str, words: Sequence[str]) -> None:
    """Parses the words of a command line of main or finetune, and checks their config.

    Raises:
      UsageError, UserError: As the command itself would.
    """
    values = flags.FlagValues()
    # `v` is the short name of another flag, which brings it.
    for name in {*ABSL_FLAGS, "part", "traceback"} & {*flags.FLAGS} - {"v"}:
        values[name] = copy.deepcopy(flags.FLAGS[name])
    cli.define_run_flags(values, has_sweep=command == "finetune")
    parse([command, *words], values, load_stored=cli.stored_config)
    cli.trust_flags(values)
    if command == "main":
        validate(values.config, is_given=True)
        return
    given = values.config.copy_and_resolve_references()
    if "sweep" in given:
        finetuning.check_sweep_flags(given, values["config"].source.flags, values.sweep)
    if given.get("task") == finetuning.ALL:
        given.task = GLUE_TASKS[0]
    finetuning.validate(given)


def _report(runs: Sequence[RunRecord], path: epath.Path) -> None:
    console = terminal()
    if not console.is_terminal:
        console = terminal(width=_FILE_WIDTH)
    runs = with_scores(runs)
    for task in dict.fromkeys(run.config.get("task", "") for run in runs):
        of_task = [run for run in runs if run.config.get("task", "") == task]
        output = path / (f"report_{task}.html" if task else workdir.REPORT)
        files.write_whole(output, page(of_task).encode())
        console.print(table(of_task, task or "pre-training"))
        print(f"report       {output}")


def table(runs: Sequence[RunRecord], title: str) -> Table:
    """Makes a table of runs, the best first; of sweeps, with their scores over seeds."""
    main, runs = ranked(runs)
    headers, rows = settings_of(runs, main)
    if not rows:
        labels = [*dict.fromkeys(label for run in runs for label in _main_results(run)), *_COST]
        headers = ["run", *labels]
        for name, run in zip(names_of(run.directory for run in runs), runs, strict=True):
            cells = [facts_of(run, runs).get(label, Cell("")) for label in labels]
            rows.append([name, *(f"{cell.text}\n{cell.note}".rstrip() for cell in cells)])
    made = empty_table(title, *headers)
    for row in rows:
        made.add_row(*row)
    return made


def _main_results(run: RunRecord) -> list[str]:
    """Lists the loss, accuracy and perplexity of a run, and its scores; the page has all results.

    For a fine-tuning, it lists the score that selects the best checkpoint.
    """
    first = next((metric.name for metric in run.metrics.values()), "")
    names = [first, *(first.replace("_loss", f"_{kind}") for kind in ("accuracy", "perplexity"))]
    return [
        label
        for label, metric in run.metrics.items()
        if metric.name in names or LOWEST + metric.name in run.values
    ]


@contextlib.contextmanager
def _stop_signals(running: list[subprocess.Popen]) -> Iterator[list[str]]:
    """Makes SIGTERM and Ctrl-C stop the running processes, which save their checkpoints then.

    Yields the names of the signals until now.
    """
    names: list[str] = []

    def note(number, _frame):
        names.append(signal.Signals(number).name)
        for process in running:
            # A process that has ended gets no signal.
            process.terminate()

    previous = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield names
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
