"""The training loop of pre-training and fine-tuning."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.preemption import PreemptionGuard
from bert_jax.training.profiler import StepProfiler
from bert_jax.training.recorder import Recorder
from bert_jax.training.stages import Stage
from bert_jax.training.state import TrainState
from bert_jax.training.trainer import Trainer


def steps_between_lines(config: ConfigDict, num_steps: int) -> int:
    """Returns the number of steps of a line of metrics; see `config.log.every_steps`."""
    return config.log.every_steps or max(1, min(50, num_steps // 20))


def train_loop(
    config: ConfigDict,
    trainer: Trainer,
    state: TrainState,
    batches: Iterable[tuple[Stage, dict[str, jax.Array]]],
    *,
    num_steps: int,
    recorder: Recorder,
    profiler: StepProfiler,
    checkpointer: Checkpointer,
    guard: PreemptionGuard,
    is_evaluated: Callable[[int], bool],
    evaluate: Callable[[int, TrainState], None],
    resume_point: Callable[[int], dict[str, Any]],
    is_over: Callable[[], bool] = lambda: False,
) -> TrainState:
    """Trains until the batches end or the run must stop.

    Args:
      config: The config of the run; `log` and `checkpoint` are used.
      trainer: Supplies the train step.
      state: The state to begin with; its buffers are donated.
      batches: The stage and the batch of every step, on the devices.
      num_steps: The last step of the run.
      recorder: Turns metrics into log lines and progress.
      profiler: Traces steps.
      checkpointer: Saves states.
      guard: Reports whether the run must stop.
      is_evaluated: Returns whether to evaluate after a step.
      evaluate: Evaluates the state after a step and records the results.
      resume_point: Returns the data that a checkpoint stores beside the state.
      is_over: Returns whether the evaluations end the run early.

    Returns:
      The state after the last step, which is saved.

    Raises:
      NonFiniteError: The loss, the gradient or the update of a step is not finite.
      UserError: A checkpoint could not be written.
    """
    step, line_steps = int(state.step), steps_between_lines(config, num_steps)
    compiled: set[tuple[tuple[int, ...], ...]] = set()
    for stage, batch in batches:
        shapes = tuple(array.shape for array in batch.values())
        if shapes not in compiled:
            compiled.add(shapes)
            with recorder.compiling():
                trainer.compile_train_step(state, batch)
        with profiler.step(step + 1, state):
            # Dispatched before the metrics of the previous step are fetched.
            state, metrics = trainer.train_step(state, batch)
        step += 1
        is_last = step == num_steps
        recorder.dispatched(step, stage, metrics, length=batch["input_ids"].shape[-1])
        if step % line_steps == 0 or is_last:
            recorder.log(step)
        if is_evaluated(step) and not guard.poll():
            with recorder.paused(step, state):
                evaluate(step, state)
        stop = guard.poll() or is_over()
        if step % config.checkpoint.every_steps == 0 or is_last or stop:
            with recorder.paused(step, state):
                # The log lines of a step are written before its checkpoint.
                recorder.flush_lines()
                resume = resume_point(step) | {"meter": recorder.state()}
                checkpointer.save(step, state, resume)
        if stop:
            break
    profiler.close(state)
    checkpointer.wait()
    return state
