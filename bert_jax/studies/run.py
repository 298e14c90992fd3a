"""A study: `compare` is the study from top to bottom.

Each part is a command of the package in its own process: `bert_jax.main` for a pre-training,
`bert_jax.finetune --sweep` for the seeds of a fine-tuning.
"""

import dataclasses
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Self

import jax
from etils import epath
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say, terminal
from bert_jax.config import finetuning
from bert_jax.config.schema import Change
from bert_jax.studies import page, results
from bert_jax.studies.plan import (
    RANDOM,
    SETTINGS,
    Model,
    Settings,
    Task,
    finetuned,
    finetuning_flags,
    models_of,
    overrides_of,
    pretrained,
    tasks_of,
)
from bert_jax.training import workdir

# The width of the table if there is no terminal.
_FILE_WIDTH = 160
# What the study sets in the configs of pre-trainings, and in those of fine-tunings.
_SET_IN_PRETRAINING = ("workdir", "data.store", "objective.teacher")
_SET_IN_FINETUNING = (
    *("workdir", "init_from", "from_scratch", "dtype", "eval.every_steps", "seed"),
    *("schedule.peak_learning_rate", "train.batch_size"),
    *(f"sweep.{key}" for key in ("learning_rates", "batch_sizes", "seeds")),
)
# The lines of progress that a part prints.
_PROGRESS = re.compile(r"[\w -]+: \d+ %.*")


@dataclasses.dataclass(frozen=True)
class Part:
    """A pre-training, or the fine-tunings of one model on one task.

    Attributes:
      title: What the part does, in words.
      kind: Parts of one kind take time in proportion to their `cost`.
      cost: The FLOPs, of a sequence for a fine-tuning.
      directory: The work directory of the run or sweep.
      result: The file that the part writes last.
      command: The module and its flags.
      config: The config of its runs, but for what the study sets in each.
    """

    title: str
    kind: str
    cost: float
    directory: epath.Path
    result: str
    command: Sequence[str]
    config: ConfigDict

    def is_finished(self) -> bool:
        return (self.directory / self.result).exists()

    def check_config(self) -> None:
        """Refuses the runs in the directory if they had another config.

        Raises:
          UserError: The message names the keys that differ.
        """
        runs = [self.directory, *self.directory.glob(f"{workdir.RUNS}/*")]
        for path in (run for run in runs if (run / workdir.CONFIG).exists()):
            stored, ignored, filled = workdir.load_config(path), _SET_IN_PRETRAINING, {}
            if workdir.is_finetuning(stored):
                stored, ignored = finetuning.user_config(stored), _SET_IN_FINETUNING
            elif (path / workdir.CONFIG_DIFFERENCES).exists():
                filled = files.read_json(path / workdir.CONFIG_DIFFERENCES)
            fields = config_lib.fields(stored)
            changed = config_lib.differences(*map(config_lib.to_dict, (stored, self.config)))
            keys = [
                key
                for key, (_, now) in changed.items()
                # A value that weights or a store replaced is that of the file.
                if not (key in ignored or key in filled and filled[key][0] == now)
                # Other keys that a run may change say where and how it is computed.
                and (key.startswith(("data.", "eval.")) or fields[key].change is not Change.ALWAYS)
            ]
            if keys:
                texts = [
                    f"{key} was {changed[key][0]!r} and is {changed[key][1]!r}" for key in keys
                ]
                raise UserError(
                    f"the {self.title} is finished, but its config has changed since: "
                    f"{', '.join(texts)}; restore the config, or choose another --workdir"
                )


def compare(settings: Settings, directory: epath.PathLike) -> dict[str, Any] | None:
    """Runs or continues a study.

    Args:
      settings: The flags of the study.
      directory: It gets study.json, the work directories of all parts, logs/, and at the end
        results.json and report.html.

    Returns:
      The contents of results.json; None if a signal stopped the study before its end.

    Raises:
      UserError: A flag is wrong or differs from the study in `directory`, or a part fails.
    """
    # Only the processes of the parts use an accelerator.
    jax.config.update("jax_platforms", "cpu")
    path = epath.Path(files.checked_path(directory, "--workdir"))
    if files.is_remote(path):
        raise UserError(f"--workdir is {path}; a study needs a local directory")
    settings.check_continued(path)
    models, tasks = models_of(settings), tasks_of(settings)
    files.make_directory(path, "--workdir")
    with files.lock_directory(path, f"another process works on the study in {path}"):
        settings.write(path)
        parts = _parts(settings, models, tasks, path)
        for part in parts:
            if part.is_finished():
                part.check_config()
        try:
            with _StopSignals() as signals:
                if not _run(parts, path, signals):
                    return None
        except UserError:
            # If no part has finished, the user may correct the flags.
            if not any(part.is_finished() for part in parts):
                (path / SETTINGS).unlink()
            raise
        found = results.collect(settings, models, tasks, path)
        files.write_json(path / workdir.RESULTS, found)
        runs = {model.name: pretrained(path, model.folder, 0) for model in models}
        files.write_whole(path / workdir.REPORT, page.page(found, settings, path, runs).encode())
    console = terminal()
    (console if console.is_terminal else terminal(width=_FILE_WIDTH)).print(results.table(found))
    for sentence in results.conclusions(found):
        say(sentence)
    print(f"report       {path / workdir.REPORT}, {path / workdir.RESULTS}")
    return found


def _parts(
    settings: Settings, models: Sequence[Model], tasks: Sequence[Task], directory: epath.Path
) -> list[Part]:
    """Lists the parts of a study in their order."""
    parts, stores = [], {}
    module = [sys.executable, "-m"]
    for model in models:
        for seed in range(settings.pretraining_seeds):
            path = pretrained(directory, model.folder, seed)
            config = model.config.copy_and_resolve_references()
            with config.unlocked():
                config.seed += seed
            values = overrides_of(settings, "config") | {
                "seed": config.seed,
                "train.num_steps": model.config.train.num_steps,
            }
            if model.teacher:
                (first,) = (other for other in models if other.name == model.teacher)
                values["objective.teacher"] = pretrained(directory, first.folder, seed)
            # The first run with a tokenizer prepares the text for all others.
            if not model.config.data.store:
                store = stores.setdefault(model.store, path / workdir.DATA)
                if store.parent != path:
                    values["data.store"] = store
            command = [*module, "bert_jax.main", f"--config={model.source}"]
            command += [f"--config.{key}={value}" for key, value in values.items()]
            parts.append(
                Part(
                    f"pre-training of {model.name}, seed {seed}",
                    "pre-training",
                    model.size.flops,
                    *(path, workdir.RESULTS, [*command, f"--workdir={path}"], config),
                )
            )
    for task in tasks:
        sides = [(model, s, False) for model in models for s in range(settings.pretraining_seeds)]
        for model, seed, is_scratch in [(models[0], 0, True), *sides]:
            folder = RANDOM if is_scratch else model.folder
            path = finetuned(directory, folder, seed, task.name)
            initial = pretrained(directory, model.folder, seed)
            flags = finetuning_flags(settings, task, model, initial, is_scratch)
            name = (
                f"random weights as in {model.name}" if is_scratch else f"{model.name}, seed {seed}"
            )
            command = [*module, "bert_jax.finetune", "--sweep", *flags, f"--workdir={path}"]
            cost = model.size.flops / model.size.tokens
            parts.append(
                Part(
                    f"fine-tuning of {name} on {task.name}",
                    *(task.name, cost, path, workdir.SWEEP, command, task.config),
                )
            )
    return parts


def _run(parts: Sequence[Part], directory: epath.Path, signals: "_StopSignals") -> bool:
    """Runs the parts that are not finished; returns False if a signal stopped the study."""
    seconds: dict[str, list[tuple[float, float]]] = {}
    is_finished = [part.is_finished() for part in parts]
    if any(is_finished):
        say(f"{sum(is_finished)} of {len(parts)} parts are finished")
    for number, part in enumerate(parts):
        if is_finished[number]:
            continue
        name = re.sub(r"\W+", "_", part.title)
        log = directory / "logs" / f"{number + 1:02}_{name}.log"
        say(f"part {number + 1} of {len(parts)}: {part.title}{_remaining(parts[number:], seconds)}")
        started = time.monotonic()
        _run_part(part, log, signals)
        if signals.name:
            say(f"Stopped by {signals.name}: run the same command to continue.")
            return False
        seconds.setdefault(part.kind, []).append((part.cost, time.monotonic() - started))
    return True


def _remaining(parts: Sequence[Part], seconds: dict[str, list[tuple[float, float]]]) -> str:
    """Estimates the time of the parts of those kinds of which a part has run."""
    known = [part for part in parts if part.kind in seconds]
    if not known:
        return ""
    total = 0.0
    for part in known:
        costs, times = zip(*seconds[part.kind], strict=True)
        total += part.cost / sum(costs) * sum(times)
    others = ", ".join(dict.fromkeys(part.kind for part in parts if part.kind not in seconds))
    beside = f" without {others}" if others else ""
    return f"; about {timedelta(seconds=round(total))} left{beside}"


def _run_part(part: Part, log: epath.Path, signals: "_StopSignals") -> None:
    """Runs a part and shows its lines of progress; its whole output is appended to the log.

    Raises:
      UserError: It failed; the message has its reason and names the log.
    """
    files.make_directory(log.parent, "--workdir")
    reason = ""
    with open(log, "a", encoding="utf-8") as output:
        output.write(f"{shlex.join(map(str, part.command))}\n")
        with subprocess.Popen(
            part.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            signals.started(process)
            for line in process.stdout:
                output.write(line)
                output.flush()
                if _PROGRESS.match(line):
                    print(f"  {line}", end="", flush=True)
                elif line.startswith("error: "):
                    reason = f": {line.removeprefix('error: ').strip()}"
    if not signals.name and (process.returncode or not part.is_finished()):
        raise UserError(
            f"the {part.title} ended with exit status {process.returncode}{reason}; its log is "
            f"{log}"
        )


class _StopSignals:
    """A context manager under which SIGTERM and Ctrl-C stop the study, but first its current part.

    Attributes:
      name: The name of the signal; empty if there was none.
      process: The process of the current part, which saves its checkpoint on SIGTERM.
    """

    def __init__(self):
        self.name = ""
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> Self:
        numbers = (signal.SIGTERM, signal.SIGINT)
        self._previous = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def started(self, process: subprocess.Popen) -> None:
        """Makes `process` the current part, and stops it if there was a signal before."""
        self.process = process
        if self.name:
            process.terminate()

    def _note(self, number, _frame):
        self.name = signal.Signals(number).name
        if self.process:
            # A process that has ended gets no signal.
            self.process.terminate()
