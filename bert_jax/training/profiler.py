"""Traces some steps of a run, for xprof and TensorBoard."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
from etils import epath


class StepProfiler:
    """Traces the steps of `config.profile`.

    The trace is written to DIRECTORY/plugins/profile/steps_FIRST_to_LAST/, where both viewers
    expect it. Each traced step is annotated with its number.

    Args:
      directory: Where the trace is written.
      start_step: The first step to trace; the first step of a run is 1.
      num_steps: The number of steps to trace; 0 for none.
      done: The number of steps already taken.
      say: Prints a sentence.
      paused: A context for starting or writing a trace, which does not count as training time.
      enabled: False traces nothing. Only process 0 traces: all processes do the same work.
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
                f"warning: nothing is profiled: config.profile covers steps {start_step:,} to "
                f"{end - 1:,}, and this run is already at step {done:,}"
            )

    @contextlib.contextmanager
    def step(self, number: int, state: Any) -> Iterator[None]:
        """Wraps the dispatch of a step, and traces the step if it is to be traced.

        Args:
          number: The step, counted from 1.
          state: The state after the previous step.
        """
        if self._last is not None and number not in self._steps:
            self.close(state)
        if number in self._steps[:1]:
            # Keeps the work of earlier steps out of the trace.
            jax.block_until_ready(state)
            self._start()
        if number not in self._steps:
            yield
            return
        self._last = number
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            yield

    def close(self, state: Any) -> None:
        """Ends and writes the current trace, if any, once `state` is computed."""
        if self._last is None:
            return
        first, last, self._last = self._steps[0], self._last, None
        jax.block_until_ready(state)
        with self._paused():
            jax.profiler.stop_trace()
        self._say(
            f"profile of steps {first:,} to {last:,} in {self._directory}; to view it: "
            f"pip install xprof, xprof --logdir={self._directory}"
        )

    def _start(self) -> None:
        first, last = self._steps[0], self._steps[-1]
        options = jax.profiler.ProfileOptions()
        # Tracing every Python call would slow down the traced steps.
        options.python_tracer_level = 0
        options.session_id = f"steps_{first}_to_{last}"
        with self._paused():
            jax.profiler.start_trace(self._directory, profiler_options=options)
