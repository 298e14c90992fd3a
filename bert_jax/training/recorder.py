"""Reads each step's metrics while the next one runs, and reports them."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from bert_jax.progress import Progress
from bert_jax.training.metrics import Meter, MetricsWriter
from bert_jax.training.stages import Stage
from bert_jax.training.trainer import Trainer


class NonFiniteError(Exception):
    """A step's loss or gradient is not a number; `step` counts from 1."""

    def __init__(self, step: int, metrics: Mapping[str, float]):
        super().__init__(step)
        self.step, self.metrics = step, dict(metrics)


class Recorder:
    """Turns the metrics of single steps into lines, curves and a progress bar.

    Args:
      trainer: For the FLOPs of a step and the peak of the devices.
      writer: Where lines go.
      progress: What a person sees.
      meter_state: `state()` of the run this one goes on from.
    """

    def __init__(
        self,
        trainer: Trainer,
        writer: MetricsWriter,
        progress: Progress,
        meter_state: Mapping[str, Any],
    ):
        self._trainer, self._writer, self._progress = trainer, writer, progress
        self._meter = Meter(**meter_state)
        self._peak = trainer.peak_flops_per_second()
        self._stage: Stage | None = None
        self._pending: tuple[int, Any] | None = None
        self._last: dict[str, float] = {}

    def dispatched(self, step: int, stage: Stage, metrics: Any) -> None:
        """Takes a step just dispatched, and reads the one before, which is done.

        Raises:
          NonFiniteError: the step before was not finite.
        """
        if stage is not self._stage:
            # A stage's first step compiles: it is counted, not timed.
            self.flush()
            self._meter.stop()
            self._stage = stage
            self._pending = (step, metrics)
            self.flush()
            if step < stage.end_step:
                self._meter.start()
            return
        self.flush()
        self._pending = (step, metrics)
        if step == stage.end_step:
            # A step that fails is told of while its stage's data are at hand; and
            # opening and compiling the next stage is no training.
            self.flush()
            self._meter.stop()

    def flush(self) -> None:
        """Waits for the pending step, if any, and counts it; raises as `dispatched`."""
        if self._pending is None:
            return
        (step, metrics), self._pending = self._pending, None
        self._last = {name: float(value) for name, value in jax.device_get(metrics).items()}
        if not all(math.isfinite(self._last[name]) for name in ("loss", "grad_norm")):
            raise NonFiniteError(step, self._last)
        stage = self._stage
        self._meter.add(
            self._last,
            sequences=stage.batch_size,
            tokens=stage.batch_size * stage.max_seq_length,
            flops=self._trainer.flops_per_step(stage),
        )
        self._progress.advance(1, self._note())

    def log(self, step: int) -> None:
        """Writes the line of the steps since the last one."""
        self.flush()
        line = self._meter.summary(self._peak)
        last = {name: self._last[name] for name in ("learning_rate", "grad_norm")}
        self._writer.write(step, line | last | {"seq_length": self._stage.max_seq_length})
        self._meter.reset()

    def log_evaluation(self, step: int, results: Mapping[str, float]) -> None:
        """Writes a held-out evaluation, each name with the prefix `eval_`; nothing if empty."""
        if not results:
            return
        self._writer.write(step, {f"eval_{name}": value for name, value in results.items()})
        self._progress.message(
            f"step {step:,}: held-out MLM loss {results['mlm_loss']:.3f} "
            f"(unigram {results['unigram_mlm_loss']:.3f}), "
            f"MLM accuracy {results['mlm_accuracy']:.1%}, "
            f"NSP accuracy {results['nsp_accuracy']:.1%}"
        )

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is not training time."""
        self.flush()
        with self._meter.paused():
            yield

    def run_sequences_per_second(self) -> float | None:
        """Average speed of all lines logged by this process."""
        return self._meter.run_sequences_per_second()

    def state(self) -> dict[str, Any]:
        """JSON-able; what a resumed run's recorder goes on from."""
        return self._meter.state()

    def _note(self) -> str:
        line = self._meter.summary(self._peak)
        parts = [
            f"loss {line['loss']:.3f}",
            f"MLM {line['mlm_accuracy']:.1%}",
            f"NSP {line['nsp_accuracy']:.1%}",
        ]
        if line["sequences_per_second"]:
            parts.append(f"{line['sequences_per_second']:,.0f} seq/s")
        if line["mfu"]:
            parts.append(f"MFU {line['mfu']:.1%}")
        return ", ".join(parts)
