"""Reads the metrics of each step while the next one runs, and reports them."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from bert_jax.progress import Progress
from bert_jax.training.metrics import Meter, MetricsWriter
from bert_jax.training.stages import Stage
from bert_jax.training.trainer import Trainer


class NonFiniteError(Exception):
    """The loss or the gradient of a step is not finite; `step` counts from 1."""

    def __init__(self, step: int, metrics: Mapping[str, float]):
        super().__init__(step)
        self.step, self.metrics = step, dict(metrics)


class Recorder:
    """Turns the metrics of single steps into log lines, curves and a progress bar.

    Args:
      trainer: Supplies the objective, the FLOPs of a step and the peak of the devices.
      writer: Writes log lines.
      progress: Shows progress on the terminal.
      meter_state: `state()` of the run that this one continues; empty for a new run.
    """

    def __init__(
        self,
        trainer: Trainer,
        writer: MetricsWriter,
        progress: Progress,
        meter_state: Mapping[str, Any],
    ):
        self._trainer, self._writer, self._progress = trainer, writer, progress
        self._meter = Meter(trainer.objective.averaged, **meter_state)
        self._peak = trainer.peak_flops_per_second()
        self._stage: Stage | None = None
        # Sequence lengths that have been compiled in this stage.
        self._lengths: set[int] = set()
        self._pending: tuple[int, int, Any] | None = None
        self._last: dict[str, float] = {}

    def dispatched(self, step: int, stage: Stage, metrics: Any, length: int) -> None:
        """Takes the metrics of a step just dispatched and reads those of the previous step.

        Args:
          step: The number of the step, from 1.
          stage: The stage of the step.
          metrics: The metrics, on the devices.
          length: The length of the step's sequences.

        Raises:
          NonFiniteError: The loss or the gradient of a finished step is not finite.
        """
        if stage is not self._stage or length not in self._lengths:
            # The first step of a length includes compilation, so it is counted but not timed.
            self.flush()
            self._meter.stop()
            self._lengths = {length} | (self._lengths if stage is self._stage else set())
            self._stage = stage
            self._pending = (step, length, metrics)
            self.flush()
            if step < stage.end_step:
                self._meter.start()
            return
        self.flush()
        self._pending = (step, length, metrics)
        if step == stage.end_step:
            # A failed step is reported while its stage is current. Opening and compiling the
            # next stage is not training time.
            self.flush()
            self._meter.stop()

    def flush(self) -> None:
        """Waits for the pending step, if any, and counts it; raises like `dispatched`."""
        if self._pending is None:
            return
        (step, length, metrics), self._pending = self._pending, None
        self._last = {name: float(value) for name, value in jax.device_get(metrics).items()}
        if not all(math.isfinite(self._last[name]) for name in ("loss", "grad_norm")):
            raise NonFiniteError(step, self._last)
        stage = dataclasses.replace(self._stage, max_seq_length=length)
        self._meter.add(
            self._last,
            sequences=stage.batch_size,
            tokens=stage.batch_size * length,
            flops=self._trainer.flops_per_step(stage),
        )
        self._progress.advance(1, self._note())

    def log(self, step: int) -> None:
        """Writes a line for the steps since the last line."""
        self.flush()
        line = self._meter.summary(self._peak)
        last = {name: self._last[name] for name in ("learning_rate", "grad_norm")}
        self._writer.write(step, line | last | {"seq_length": self._stage.max_seq_length})
        self._meter.reset()

    def log_evaluation(self, step: int, results: Mapping[str, float], message: str) -> None:
        """Writes an evaluation, each name with the prefix `eval_`, and prints `message`."""
        self._writer.write(step, {f"eval_{name}": value for name, value in results.items()})
        self._progress.message(f"step {step:,}: {message}")

    def flush_lines(self) -> None:
        """Returns when all lines are stored."""
        self._writer.flush()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock of training time during the block."""
        self.flush()
        with self._meter.paused():
            yield

    def run_sequences_per_second(self) -> float | None:
        """Returns the average speed over all lines logged by this process."""
        return self._meter.run_sequences_per_second()

    def state(self) -> dict[str, Any]:
        """Returns the JSON-able state from which the recorder of a resumed run continues."""
        return self._meter.state()

    def _note(self) -> str:
        line = self._meter.summary(self._peak)
        parts = [f"loss {line['loss']:.3f}"]
        shown = self._trainer.objective.progress
        parts += [f"{text} {line[name]:.1%}" for name, text in shown.items()]
        if line["sequences_per_second"]:
            parts.append(f"{line['sequences_per_second']:,.0f} seq/s")
        if line["mfu"]:
            parts.append(f"MFU {line['mfu']:.1%}")
        return ", ".join(parts)
