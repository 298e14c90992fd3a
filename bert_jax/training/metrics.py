"""Where numbers go: metrics.jsonl, TensorBoard and the meter that makes them."""

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath
from tensorboardX import SummaryWriter

from bert_jax.errors import naming

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_DIRECTORY = "tensorboard"
# Averaged over the steps of a line; all others are the last step's.
AVERAGED = ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy")
RATES = ("sequences_per_second", "tokens_per_second", "flops_per_second", "mfu")


class MetricsWriter:
    """Appends to WORKDIR/metrics.jsonl and WORKDIR/tensorboard.

    Args:
      workdir: The work directory.
      resumed_step: Lines beyond this step, of work that was lost with a killed
        process and is now done again, are taken out first.
    """

    def __init__(self, workdir: epath.PathLike, resumed_step: int):
        self._path = epath.Path(workdir) / METRICS_FILE
        lines = [line for line in read_metrics(workdir) if line["step"] <= resumed_step]
        partial = self._path.with_suffix(".partial")
        with naming(self._path):
            partial.write_text("".join(json.dumps(line) + "\n" for line in lines))
            partial.replace(self._path)
        self._directory = epath.Path(workdir) / TENSORBOARD_DIRECTORY
        self._tensorboard = SummaryWriter(str(self._directory), purge_step=resumed_step + 1)

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Writes one line at once: a killed process loses none that was written."""
        with naming(self._path), self._path.open("a") as stream:
            stream.write(json.dumps({"step": step, **_finite(values)}) + "\n")
        with naming(self._directory):
            for name, value in values.items():
                if value is not None:
                    prefix = "eval/" if name.startswith("eval_") else "train/"
                    self._tensorboard.add_scalar(prefix + name.removeprefix("eval_"), value, step)
            self._tensorboard.flush()

    def close(self) -> None:
        with naming(self._directory):
            self._tensorboard.close()


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
    """

    def __init__(self, sums: Mapping[str, float] | None = None, count: int = 0):
        self._sums = dict(sums) if sums else dict.fromkeys(AVERAGED, 0.0)
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
        for name in AVERAGED:
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
        self._sums, self._count = dict.fromkeys(AVERAGED, 0.0), 0
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
