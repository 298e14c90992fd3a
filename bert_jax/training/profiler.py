"""A trace of some of a run's steps, for xprof and TensorBoard."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
from etils import epath


class StepProfiler:
    """Runs steps, and traces those that were asked for.

    The trace goes to DIRECTORY/plugins/profile/steps_FIRST_to_LAST/, where both viewers look
    for it; `jax.profiler` writes to object storage too. Each traced step is annotated with its
    number ("train", step_num=12), so that the viewers tell steps apart. A second trace of the
    same steps takes the first one's place. A trace that cannot be written costs the run a
    warning, not its life.

    Args:
      directory: Where the trace goes.
      start_step: The first step to trace; the run's first is 1.
      num_steps: How many are traced; 0: none.
      done: Steps taken before this start; of these none can be traced any more.
      say: Shows a person a sentence.
      paused: Entered while a trace is begun or written, which is no training time.
      enabled: False traces nothing (all processes of a pod but the first: each process
        sees its own devices only, and they all do the same).
    """

    def __init__(
        self,
        directory: epath.PathLike,
        *,
        start_step: int,
        num_steps: int,
        done: int,
        say: Callable[[str], None],
        paused: Callable[[], AbstractContextManager],
        enabled: bool = True,
    ):
        self._directory = str(directory)
        self._say, self._paused = say, paused
        end = start_step + num_steps
        self._steps = range(max(start_step, done + 1), end) if enabled else range(0)
        self._last: int | None = None
        if enabled and num_steps and not self._steps:
            say(
                f"warning: nothing is profiled: config.profile asks for steps {start_step:,} to "
                f"{end - 1:,}, and this run is at step {done:,} already"
            )

    def run(self, step: int, train_step: Callable[..., Any], state: Any, batch: Any) -> Any:
        """Returns `train_step(state, batch)`, of the step with this number."""
        if step not in self._steps:
            return train_step(state, batch)
        if step == self._steps[0]:
            # What the devices still work on is not to be seen.
            jax.block_until_ready(state)
            self._start()
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            outputs = train_step(state, batch)
        self._last = step
        if step == self._steps[-1]:
            jax.block_until_ready(outputs)
            self.close()
        return outputs

    def close(self) -> None:
        """Writes the trace if one is under way: its steps are taken, or the run is leaving."""
        if self._last is None:
            return
        first, last, self._last = self._steps[0], self._last, None
        with self._paused():
            try:
                jax.profiler.stop_trace()
            except (jax.errors.JaxRuntimeError, OSError) as error:
                self._say(f"warning: the profile of steps {first:,} to {last:,} is lost: {error}")
                return
        self._say(
            f"profile of steps {first:,} to {last:,} in {self._directory}; to see it: "
            f"pip install xprof, xprof --logdir={self._directory}"
        )

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        # Tracing every Python call would slow the very steps that are looked at.
        options.python_tracer_level = 0
        options.session_id = f"steps_{self._steps[0]}_to_{self._steps[-1]}"
        with self._paused():
            jax.profiler.start_trace(self._directory, profiler_options=options)
