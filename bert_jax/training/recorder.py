"""Reads the metrics of each step while the next one runs, and reports them."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from bert_jax.base.progress import Progress
from bert_jax.training.metrics import BY_SOURCE, EVALUATION_PREFIX, Meter, MetricsWriter
from bert_jax.training.stages import Stage
from bert_jax.training.state import TrainState
from bert_jax.training.trainer import Trainer


class NonFiniteError(Exception):
    """The loss, the gradient or the update of a step is not finite; `step` counts from 1."""

    def __init__(self, step: int, metrics: Mapping[str, float]):
        super().__init__(step)
        self.step, self.metrics = step, dict(metrics)


class Recorder:
    """Turns the metrics of single steps into log lines, curves and a progress bar.

    Args:
      meter_state: `state()` of the run that this one continues; empty for a new run.
    """

    def __init__(
        self,
        trainer: Trainer,
        writer: MetricsWriter,
        progress: Progress,
        meter_state: Mapping[str, Any],
    ):
        self._trainer, self.writer, self.progress = trainer, writer, progress
        self.meter = Meter(trainer.objective.averaged, **meter_state)
        self._peak = trainer.peak_flops_per_second()
        self._stage: Stage | None = None
        self._pending: tuple[int, int, Any] | None = None
        self._last: dict[str, float] = {}
        self._compile_seconds = self._logged_compile_seconds = 0.0

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Counts the time of the block as compilation.

        The first step after it is not timed either: it also loads the program, allocates memory
        and connects the devices.
        """
        self.flush()
        self.meter.since = None
        started = time.monotonic()
        yield
        self._compile_seconds += time.monotonic() - started

    def dispatched(self, step: int, stage: Stage, metrics: Any, length: int) -> None:
        """Keeps the metrics of a step just dispatched, and reads the previous step's."""
        self.flush()
        self._stage, self._pending = stage, (step, length, metrics)
        if self.meter.since is None:
            self.flush()
            self.meter.since = time.monotonic()
        if step == stage.end_step:
            # A failed step is reported while its stage is current. Opening the next stage is not
            # training time.
            self.flush()
            self.meter.since = None

    def flush(self) -> None:
        """Waits for the pending step, if any, and counts it; raises NonFiniteError."""
        if self._pending is None:
            return
        (step, length, metrics), self._pending = self._pending, None
        self._last = {name: float(value) for name, value in jax.device_get(metrics).items()}
        if not all(math.isfinite(self._last[name]) for name in ("loss", "grad_norm")):
            raise NonFiniteError(step, self._last)
        stage = dataclasses.replace(self._stage, max_seq_length=length)
        self.meter.add(self._last, **self._trainer.work(stage, self._last))
        self.progress.advance(1, self._note(step))

    def log(self, step: int) -> None:
        """Writes a line for the steps since the last line."""
        self.flush()
        line = self.meter.summary(self._peak)
        last = {name: self._last[name] for name in ("learning_rate", "grad_norm")}
        compiling = {"compile_seconds": self._compile_seconds - self._logged_compile_seconds}
        length = {"seq_length": self._stage.max_seq_length}
        self.writer.write(step, line | compiling | last | length)
        self.meter.reset()
        self._logged_compile_seconds = self._compile_seconds

    def log_evaluation(self, step: int, results: Mapping[str, Any], message: str) -> None:
        """Writes an evaluation, each name with EVALUATION_PREFIX, and prints `message`.

        The results of a source have its name before theirs.
        """
        values = dict(results)
        for source, of_source in values.pop(BY_SOURCE, {}).items():
            values |= {f"{source}_{name}": value for name, value in of_source.items()}
        self.writer.write(step, {EVALUATION_PREFIX + name: values[name] for name in values})
        self.progress.message(f"step {step:,}: {message}")

    @contextlib.contextmanager
    def paused(self, step: int = 0, state: TrainState | None = None) -> Iterator[None]:
        """Stops the clock of training time during the block.

        Args:
          step, state: The last step and the state after it, if the block uses the state. A state
            that is not finite raises NonFiniteError, as an earlier step does.
        """
        self.flush()
        try:
            if state is not None and not state.is_finite():
                raise NonFiniteError(step, self._last)
            yield
        finally:
            if self.meter.since is not None:
                self.meter.since = time.monotonic()

    def times(self) -> dict[str, float | None]:
        """Computes the average speed over all lines logged by this process, and `compile_seconds`.

        The latter is the time that this process spent compiling train steps.
        """
        return {
            "train_sequences_per_second": self.meter.run_sequences_per_second(),
            "compile_seconds": self._compile_seconds,
        }

    def _note(self, step: int) -> str:
        line = self.meter.summary(self._peak)
        parts = [f"step {step:,}", f"loss {line['loss']:.3f}"]
        shown = self._trainer.objective.progress
        parts += [f"{text} {line[name]:.1%}" for name, text in shown.items()]
        if line["sequences_per_second"]:
            parts.append(f"{line['sequences_per_second']:,.0f} seq/s")
        if line["mfu"]:
            parts.append(f"MFU {line['mfu']:.1%}")
        return ", ".join(parts)
