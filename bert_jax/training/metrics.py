"""Where numbers go: metrics.jsonl, TensorBoard and the meter that makes them."""

import contextlib
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from etils import epath
from tensorboardX import SummaryWriter

from bert_jax import storage
from bert_jax.errors import naming
from bert_jax.objectives.pretraining import PreTraining

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_DIRECTORY = "tensorboard"
# Pre-training's, averaged over the steps of a line; all others are the last step's.
AVERAGED = PreTraining.averaged
# Between copies to object storage, which takes one a second of an object at most.
UPLOAD_SECONDS = 30.0
RATES = ("sequences_per_second", "tokens_per_second", "flops_per_second", "mfu")


class MetricsWriter:
    """Appends to WORKDIR/metrics.jsonl and WORKDIR/tensorboard.

    Object storage cannot append: there both are written to scratch files, copied as a whole
    at most every UPLOAD_SECONDS and by `flush`. A killed process may lose the lines since.

    Args:
      workdir: The work directory.
      resumed_step: Lines beyond this step, of work that was lost with a killed
        process and is now done again, are taken out first.
      enabled: False writes nothing (all processes of a run but the first).
    """

    def __init__(self, workdir: epath.PathLike, resumed_step: int, *, enabled: bool = True):
        self._enabled = enabled
        if not enabled:
            return
        lines = [line for line in read_metrics(workdir) if line["step"] <= resumed_step]
        self._mirror = _Mirror(workdir) if storage.is_remote(workdir) else None
        workdir = Path(self._mirror.scratch if self._mirror else workdir)
        self._path = workdir / METRICS_FILE
        text = "".join(json.dumps(line) + "\n" for line in lines)
        storage.write_whole(self._path, text.encode())
        self._directory = workdir / TENSORBOARD_DIRECTORY
        self._tensorboard = SummaryWriter(str(self._directory), purge_step=resumed_step + 1)
        self.flush()

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Writes one line at once: on a disk, a killed process loses none that was written."""
        if not self._enabled:
            return
        with naming(self._path), self._path.open("a") as stream:
            stream.write(json.dumps({"step": step, **_finite(values)}) + "\n")
        with naming(self._directory):
            for name, value in values.items():
                if value is not None:
                    prefix = "eval/" if name.startswith("eval_") else "train/"
                    self._tensorboard.add_scalar(prefix + name.removeprefix("eval_"), value, step)
            self._tensorboard.flush()
        if self._mirror:
            self._mirror.offer()

    def flush(self) -> None:
        """Returns when every line is where it is kept: before a checkpoint of its step is."""
        if self._enabled and self._mirror:
            self._tensorboard.flush()
            self._mirror.flush()

    def close(self) -> None:
        if not self._enabled:
            return
        with naming(self._directory):
            self._tensorboard.close()
        if self._mirror:
            self._mirror.close()


class _Mirror:
    """Copies the files of a scratch directory, which grow, to a folder of object storage.

    Each is copied as a whole, and only where it has grown: some megabytes at a run's end.

    Attributes:
      scratch: The directory.
    """

    def __init__(self, folder: epath.PathLike):
        self._folder = folder
        self._scratch = tempfile.TemporaryDirectory(prefix="bert_jax_")
        self.scratch = Path(self._scratch.name)
        self._sizes: dict[str, int] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._under_way: Future | None = None
        self._begun = -math.inf

    def offer(self) -> None:
        """Begins a copy, unless one is under way or the last is not UPLOAD_SECONDS old."""
        if self._under_way and not self._under_way.done():
            return
        # One that failed is made up for by the next.
        if time.monotonic() - self._begun >= UPLOAD_SECONDS:
            self._begin()

    def flush(self) -> None:
        """Copies what has grown; raises what the storage says."""
        if self._under_way:
            wait([self._under_way])
        self._begin()
        self._under_way.result()

    def close(self) -> None:
        """Copies the rest and removes the scratch directory."""
        try:
            self.flush()
        finally:
            self._thread.shutdown()
            self._scratch.cleanup()

    def _begin(self) -> None:
        self._begun = time.monotonic()
        # Read here, between two lines.
        files = [file for file in sorted(self.scratch.rglob("*")) if file.is_file()]
        contents = {file.relative_to(self.scratch).as_posix(): file.read_bytes() for file in files}
        self._under_way = self._thread.submit(self._copy, contents)

    def _copy(self, contents: dict[str, bytes]) -> None:
        for name, content in contents.items():
            if self._sizes.get(name) != len(content):
                storage.write_whole(epath.Path(self._folder) / name, content)
                self._sizes[name] = len(content)


def _finite(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """NaN and infinity are no JSON: null."""
    return {
        name: None if value is None or not math.isfinite(value) else value
        for name, value in values.items()
    }


def read_metrics(workdir: epath.PathLike) -> list[dict[str, Any]]:
    """Reads metrics.jsonl; a line that is damaged (cut short by a kill) is left out."""
    path = epath.Path(workdir) / METRICS_FILE
    lines = []
    # Only "\n" ends a line, whatever bytes a damaged one holds.
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        with contextlib.suppress(ValueError):
            values = json.loads(line)
            if isinstance(values, dict) and isinstance(values.get("step"), int):
                lines.append(values)
    return lines


class Meter:
    """Averages what steps report, and times them without their pauses.

    Its sums travel in the checkpoint, so that the line after a resume is the line
    that would have been written without the interruption (but for the times).

    Args:
      sums, count: `state()` of the meter that this one goes on from.
      averaged: Names of what is averaged.
    """

    def __init__(
        self,
        sums: Mapping[str, float] | None = None,
        count: int = 0,
        *,
        averaged: Sequence[str] = AVERAGED,
    ):
        self._sums = dict(sums) if sums else dict.fromkeys(averaged, 0.0)
        self._count = count
        self._since: float | None = None
        self._clear_times()
        self._run_sequences, self._run_seconds = 0, 0.0

    def start(self) -> None:
        """Starts the clock; steps are counted, but not timed, while it stands."""
        self._since = time.monotonic()

    def stop(self) -> None:
        """Stops the clock: compiling, evaluating and saving are not training."""
        if self._since is not None:
            self._seconds += time.monotonic() - self._since
        self._since = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock for a while."""
        running = self._since is not None
        self.stop()
        try:
            yield
        finally:
            if running:
                self.start()

    def add(self, metrics: Mapping[str, float], sequences: int, tokens: int, flops: float) -> None:
        """Counts one finished step of so many sequences, tokens and FLOPs."""
        for name in self._sums:
            self._sums[name] += float(metrics[name])
        self._count += 1
        if self._since is not None:
            self._sequences += sequences
            self._tokens += tokens
            self._flops += flops

    def summary(self, peak_flops_per_second: float | None) -> dict[str, float | None]:
        """Averages and rates since the last `reset`; a rate is None without a timed step."""
        averages = {name: total / max(self._count, 1) for name, total in self._sums.items()}
        seconds = self._seconds
        if self._since is not None:
            seconds += time.monotonic() - self._since
        if not self._sequences or seconds <= 0:
            return averages | dict.fromkeys(RATES)
        flops_per_second = self._flops / seconds
        return averages | {
            "sequences_per_second": self._sequences / seconds,
            "tokens_per_second": self._tokens / seconds,
            "flops_per_second": flops_per_second,
            "mfu": flops_per_second / peak_flops_per_second if peak_flops_per_second else None,
        }

    def reset(self) -> None:
        """Forgets all steps but for `run_sequences_per_second`; the clock runs on if it ran."""
        running = self._since is not None
        self.stop()
        self._run_sequences += self._sequences
        self._run_seconds += self._seconds
        self._sums, self._count = dict.fromkeys(self._sums, 0.0), 0
        self._clear_times()
        if running:
            self.start()

    def run_sequences_per_second(self) -> float | None:
        """Average over all steps timed by this meter, up to the last `reset`."""
        return self._run_sequences / self._run_seconds if self._run_seconds else None

    def state(self) -> dict[str, Any]:
        """What `Meter(**state)` goes on from."""
        return {"sums": dict(self._sums), "count": self._count}

    def _clear_times(self) -> None:
        self._sequences = self._tokens = 0
        self._flops = self._seconds = 0.0
