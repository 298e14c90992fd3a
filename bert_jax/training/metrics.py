"""Averages and times steps, and writes their metrics to metrics.jsonl, TensorBoard and wandb."""

import collections
import contextlib
import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import with_filename
from bert_jax.training.tracker import Tracker

METRICS_FILE = "metrics.jsonl"
# The names of held-out metrics begin with it.
EVALUATION_PREFIX = "eval_"
# The results of each source of `data.sources`, by name.
BY_SOURCE = "by_source"
# The metrics on `eval.other_text` begin with it, after EVALUATION_PREFIX. No source has this name.
OTHER_TEXT = "other_"
# The key of results.json with the results of the initial weights, before the first step.
BEFORE = "before"
# The keys of fine-tuning with the scores of a constant prediction, and with those of each class.
BASELINE, CLASSES = "baseline", "classes"
TENSORBOARD_DIRECTORY = "tensorboard"
# Object storage accepts about one write per second for an object.
UPLOAD_SECONDS = 30.0
RATES = ("sequences_per_second", "tokens_per_second", "flops_per_second", "mfu")


class MetricsWriter:
    """Appends to WORKDIR/metrics.jsonl and WORKDIR/tensorboard, and sends the same to a tracker.

    Object storage cannot append: both are written to scratch files, which are uploaded in full at
    most every UPLOAD_SECONDS and by `flush`. A killed process may lose the lines since the last
    upload.

    Args:
      resumed_step: Lines after this step are removed first, because their steps run again.
      evaluated_step: Lines of evaluations after this step are removed too.
      enabled: False writes nothing, for processes other than the first.
    """

    def __init__(
        self,
        workdir: epath.PathLike,
        resumed_step: int,
        evaluated_step: int,
        *,
        tracker: Tracker | None = None,
        enabled: bool = True,
    ):
        from tensorboardX import SummaryWriter  # The import takes half a second.

        self._enabled = enabled
        if not enabled:
            return
        # A run that begins anew evaluates step 0 again.
        first_step = resumed_step + 1 if resumed_step else 0
        lines = [
            line
            for line in read_metrics(workdir)
            if line["step"] < first_step
            and (
                line["step"] <= evaluated_step
                or not any(name.startswith(EVALUATION_PREFIX) for name in line)
            )
        ]
        self._tracker = tracker
        self._remote, self._scratch = None, None
        if files.is_remote(workdir):
            self._remote = epath.Path(workdir)
            self._scratch = tempfile.TemporaryDirectory(prefix="bert_jax_")
            workdir = self._scratch.name
        self._directory = Path(workdir)
        self._path = self._directory / METRICS_FILE
        self._uploaded_bytes: dict[str, int] = {}
        text = "".join(json.dumps(line) + "\n" for line in lines)
        files.write_whole(self._path, text.encode())
        self._tensorboard = SummaryWriter(
            str(self._directory / TENSORBOARD_DIRECTORY), purge_step=first_step
        )
        self.flush()

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes one line; its upload to object storage may follow later.

        TensorBoard and the tracker get the numbers only.
        """
        if not self._enabled:
            return
        # JSON has neither NaN nor infinity.
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        with with_filename(self._path), self._path.open("a") as stream:
            stream.write(json.dumps({"step": step, **finite}) + "\n")
        numbers = {}
        for name, value in values.items():
            if isinstance(value, int | float):
                folder = "eval" if name.startswith(EVALUATION_PREFIX) else "train"
                numbers[f"{folder}/{name.removeprefix(EVALUATION_PREFIX)}"] = value
        with with_filename(self._directory / TENSORBOARD_DIRECTORY):
            for name, value in numbers.items():
                self._tensorboard.add_scalar(name, value, step)
            self._tensorboard.flush()
        if self._tracker:
            self._tracker.log(step, numbers)
        if self._remote and time.monotonic() - self._uploaded_at >= UPLOAD_SECONDS:
            try:
                self.flush()
            except Exception as error:
                # If storage refuses an upload, the next one includes its lines.
                if not files.storage_problem(error):
                    raise

    def flush(self) -> None:
        """Uploads all lines to object storage; called before a checkpoint is saved."""
        if not self._enabled or not self._remote:
            return
        self._uploaded_at = time.monotonic()
        self._tensorboard.flush()
        for file in sorted(self._directory.rglob("*")):
            name = file.relative_to(self._directory).as_posix()
            if file.is_file() and self._uploaded_bytes.get(name) != file.stat().st_size:
                content = file.read_bytes()
                files.write_whole(self._remote / name, content)
                self._uploaded_bytes[name] = len(content)

    def close(self) -> None:
        if not self._enabled:
            return
        with with_filename(self._directory / TENSORBOARD_DIRECTORY):
            self._tensorboard.close()
        try:
            self.flush()
        finally:
            if self._scratch:
                self._scratch.cleanup()


def read_metrics(workdir: epath.PathLike) -> list[dict[str, Any]]:
    """Reads metrics.jsonl without damaged lines (a killed process may cut one short)."""
    path = epath.Path(workdir) / METRICS_FILE
    lines = []
    # Only "\n" ends a line; a damaged line may hold any other bytes.
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        with contextlib.suppress(ValueError):
            values = json.loads(line)
            if isinstance(values, dict) and "step" in values:
                lines.append(values)
    return lines


def evaluation_at(workdir: epath.PathLike, step: int) -> dict[str, float]:
    """Returns the numbers of the evaluation at a step, without EVALUATION_PREFIX; {} if none."""
    return {
        name.removeprefix(EVALUATION_PREFIX): value
        for line in read_metrics(workdir)
        for name, value in line.items()
        if line["step"] == step and name.startswith(EVALUATION_PREFIX) and type(value) is not list
    }


class Meter:
    """Averages the metrics of steps, and times the steps without the pauses between them.

    Its sums are saved in the checkpoint: a resumed run writes the averages that an uninterrupted
    one would have written.

    Args:
      sums, count: The `state()` to continue from.

    Attributes:
      since: When the next step begins; None if it is not timed.
    """

    def __init__(
        self, averaged: Sequence[str], sums: Mapping[str, float] | None = None, count: int = 0
    ):
        self._sums = dict(sums) if sums else dict.fromkeys(averaged, 0.0)
        self._count = count
        self.since: float | None = None
        # The work of the timed steps, and its time, since `reset` and before.
        self._work, self._earlier = collections.Counter(), collections.Counter()

    def add(self, metrics: Mapping[str, float], sequences: int, tokens: int, flops: float) -> None:
        """Counts one finished step and its sequences, tokens and FLOPs."""
        for name in self._sums:
            self._sums[name] += float(metrics[name])
        self._count += 1
        if self.since is not None:
            now = time.monotonic()
            seconds, self.since = now - self.since, now
            work = {"sequences": sequences, "tokens": tokens, "flops": flops, "seconds": seconds}
            self._work.update(work)

    def summary(self, peak_flops_per_second: float | None) -> dict[str, float | None]:
        """Computes averages and rates since `reset`; rates are None if no step was timed."""
        averages = {name: total / max(self._count, 1) for name, total in self._sums.items()}
        seconds = self._work["seconds"]
        if not seconds:
            return averages | dict.fromkeys(RATES)
        rates = {
            f"{name}_per_second": self._work[name] / seconds
            for name in ("sequences", "tokens", "flops")
        }
        peak = peak_flops_per_second
        return averages | rates | {"mfu": rates["flops_per_second"] / peak if peak else None}

    def reset(self) -> None:
        """Starts new averages and rates."""
        self._sums, self._count = dict.fromkeys(self._sums, 0.0), 0
        self._earlier.update(self._work)
        self._work.clear()

    def run_sequences_per_second(self) -> float | None:
        """Computes the average over all timed steps of this meter, up to the last `reset`."""
        seconds = self._earlier["seconds"]
        return self._earlier["sequences"] / seconds if seconds else None

    def state(self) -> dict[str, Any]:
        """Returns the state of the averages: `Meter(averaged, **state)` continues them."""
        return {"sums": dict(self._sums), "count": self._count}


def score_name(splits: Sequence[str], split: str, name: str) -> str:
    """Returns the name of a validation split's score in metrics.jsonl.

    Only the scores of the first split have no prefix.
    """
    return name if split == splits[0] else f"{split.removeprefix('validation_')}_{name}"
