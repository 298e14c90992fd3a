"""The training loop of pre-training and fine-tuning, which SIGTERM ends cleanly."""

import signal
import threading
from collections.abc import Generator
from contextlib import ExitStack, closing
from typing import Any, Protocol, Self

import jax
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.base.progress import Progress
from bert_jax.parallel import multihost
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.profiler import StepProfiler
from bert_jax.training.recorder import NonFiniteError, Recorder
from bert_jax.training.stages import Stage
from bert_jax.training.state import TrainState
from bert_jax.training.tracker import Tracker
from bert_jax.training.trainer import Trainer


def steps_between_lines(config: ConfigDict, num_steps: int) -> int:
    """Returns the number of steps between lines of metrics; see `config.log.every_steps`."""
    return config.log.every_steps or max(1, min(50, num_steps // 20))


class PreemptionGuard:
    """A context manager under which SIGTERM stops the run at the next step.

    Cloud TPU, Kubernetes and Slurm send SIGTERM. A first SIGINT (Ctrl-C) has the same effect;
    a second one ends the process at once. If there are several processes, a signal to one of them
    stops all at the same step.
    """

    def __init__(self):
        self._noted = 0
        self._agreed = 0
        self._vote: jax.Array | None = None
        self._previous: dict[int, object] = {}

    @property
    def signal_name(self) -> str:
        """The name of the signal; empty if there was none."""
        number = self._agreed if jax.process_count() > 1 else self._noted
        return signal.Signals(number).name if number else ""

    @property
    def requested(self) -> bool:
        """Whether the run must stop. With several processes, `poll` updates this."""
        return bool(self.signal_name)

    def poll(self) -> bool:
        """Returns whether a stop was requested.

        All processes must call this between the same steps, and all get the same answer. It is
        the result of the previous call's vote, so no step has to wait for it.
        """
        if jax.process_count() > 1 and not self._agreed:
            before, self._vote = self._vote, multihost.vote(self._noted)
            self._agreed = 0 if before is None else int(before)
        return self.requested

    def __enter__(self) -> Self:
        # Python allows handlers only in the main thread; a worker thread of a notebook trains
        # without them.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number, _frame):
        self._noted = number
        if number == signal.SIGINT:
            signal.signal(number, self._previous[number])


class Run(Protocol):
    """What `engine.run_to_end` and the loop need from a run of pre-training or fine-tuning.

    Attributes:
      config: The completed config; the loop reads `log`, `checkpoint` and `profile`.
      evaluated_step: The last step that was evaluated; -1 if there is none.
      results: The results of the run so far; empty if the run must be evaluated for them.
      is_over: Whether the latest evaluation ended the run before its last step.
    """

    label: str
    config: ConfigDict
    directory: epath.Path
    trainer: Trainer
    num_steps: int
    evaluated_step: int
    results: dict[str, Any]
    is_over: bool

    def open_input(self) -> None:
        """Opens the input, prepares it first if it is missing, and claims it for the directory."""
        ...

    def first_state(self) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state of a run without checkpoints, and the argument of `begin`."""
        ...

    def begin(self, resume: dict[str, Any]) -> None:
        """Takes what the checkpoint of the first state stores beside it; empty for a new run."""
        ...

    def claim(self) -> None:
        """Writes the config; called on process 0 only."""
        ...

    def announce(self, step: int) -> None:
        """Describes the run before the first compilation, which takes a while."""
        ...

    def batches(self, step: int) -> Generator[tuple[Stage, dict[str, jax.Array]]]:
        """Yields the stage and the batch, on the devices, of every step after `step`."""
        ...

    def resume_point(self, step: int) -> dict[str, Any]:
        """Returns what the checkpoint of `step` stores beside the state, as values for JSON."""
        ...

    def is_evaluated(self, step: int) -> bool:
        """Returns whether the state after `step` is evaluated."""
        ...

    def evaluate(self, state: TrainState, recorder: Recorder, guard: PreemptionGuard) -> None:
        """Evaluates a state and records the results, unless the run must stop."""
        ...

    def end(self, step: int, times: dict[str, float | None]) -> dict[str, Any]:
        """Returns the contents of results.json, with the result of `Recorder.times`."""
        ...

    def predict_splits(
        self, results: dict[str, Any], guard: PreemptionGuard
    ) -> dict[str, Any] | None:
        """Predicts the splits that the config names, with the weights of a finished run.

        Returns:
          The scores to add to the results; None if the run must stop.
        """
        ...


class DivergedError(UserError):
    """A step or the outputs of a model are not finite; another learning rate may help."""


def train_loop(
    run: Run,
    state: TrainState,
    resume: dict[str, Any],
    checkpointer: Checkpointer,
    guard: PreemptionGuard,
    tracker: Tracker,
) -> tuple[int, dict[str, float | None]]:
    """Trains until the run ends or must stop. Only process 0 writes metrics and prints.

    Args:
      state: The state to begin with; its buffers are donated.
      resume: What the checkpoint of this state stores beside it; empty for a new run.

    Returns:
      The last step, whose state is saved, and the result of `Recorder.times`.

    Raises:
      DivergedError: The loss, the gradient or the update of a step is not finite.
    """
    trainer, step, is_first = run.trainer, int(state.step), multihost.is_first()
    # The run was stopped before this evaluation, or before its results were written.
    is_unevaluated = run.is_evaluated(step) and bool(
        run.evaluated_step < step or step == run.num_steps and not run.results
    )
    evaluated_step = min(run.evaluated_step, step - is_unevaluated)
    with ExitStack() as stack:
        progress = stack.enter_context(
            Progress(
                run.label,
                run.num_steps,
                "steps",
                done=step,
                enabled=is_first,
                # Steps of later stages may take longer.
                cost=trainer.flops_until,
            )
        )
        writer = MetricsWriter(
            run.directory, step, evaluated_step, tracker=tracker, enabled=is_first
        )
        stack.enter_context(closing(writer))
        recorder = Recorder(trainer, writer, progress, resume.get("meter", {}))
        profiler = StepProfiler(
            run.directory / workdir.PROFILE,
            run.config.profile,
            # Only process 0 traces: all processes do the same work.
            range(step + 1, run.num_steps + 1) if is_first else range(0),
            say=progress.message,
            paused=recorder.paused,
        )
        if is_unevaluated:
            run.evaluate(state, recorder, guard)
        last_step = _take_steps(run, state, recorder, profiler, checkpointer, guard)
    return last_step, recorder.times()


def _take_steps(
    run: Run,
    state: TrainState,
    recorder: Recorder,
    profiler: StepProfiler,
    checkpointer: Checkpointer,
    guard: PreemptionGuard,
) -> int:
    config = run.config
    step, line_steps = int(state.step), steps_between_lines(config, run.num_steps)
    compiled = set()
    # There are no batches after the last step.
    batches = run.batches(run.num_steps if guard.poll() or run.is_over else step)
    try:
        for stage, batch in batches:
            trainer = run.trainer.with_model(stage.model_keys)
            program = stage.model_keys, *(array.shape for array in batch.values())
            if program not in compiled:
                compiled.add(program)
                with recorder.compiling():
                    trainer.compile_train_step(state, batch)
            with profiler.step(step + 1, state):
                # Dispatched before the metrics of the previous step are fetched.
                state, metrics = trainer.train_step(state, batch)
            step += 1
            recorder.dispatched(step, stage, metrics, length=batch["input_ids"].shape[-1])
            if step % line_steps == 0 or step == run.num_steps:
                recorder.log(step)
            if run.is_evaluated(step) and not guard.poll():
                with recorder.paused(step, state):
                    run.evaluate(state, recorder, guard)
            stop = guard.poll() or run.is_over
            if step % config.checkpoint.every_steps == 0 or step == run.num_steps or stop:
                with recorder.paused(step, state):
                    # The log lines of a step are written before its checkpoint.
                    recorder.writer.flush()
                    resume = run.resume_point(step) | {"meter": recorder.meter.state()}
                    checkpointer.save(step, state, resume)
            if stop:
                break
    except NonFiniteError as error:
        raise _diverged(error, checkpointer) from error
    finally:
        batches.close()
    profiler.close(state)
    checkpointer.wait()
    if guard.requested:
        recorder.progress.message(
            f"Stopped by {guard.signal_name}: the checkpoint of step {step:,} is saved; run the "
            "same command to continue."
        )
    return step


def _diverged(error: NonFiniteError, checkpointer: Checkpointer) -> DivergedError:
    checkpointer.wait()
    steps, metrics = checkpointer.steps(), error.metrics
    last = f"the last checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint"
    return DivergedError(
        f"the loss, gradient or update of step {error.step} is not finite (loss "
        f"{metrics['loss']}, gradient norm {metrics['grad_norm']}, learning rate "
        f"{metrics['learning_rate']:.3g}); {last}; it usually helps to start in another --workdir "
        "with a lower config.schedule.peak_learning_rate, a lower config.optimizer.weight_decay or "
        "a longer warm-up"
    )
