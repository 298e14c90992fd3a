"""Traces some steps of a run, for xprof and TensorBoard."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict


class StepProfiler:
    """Traces the steps of `config.profile`.

    The trace is written to DIRECTORY/plugins/profile/steps_FIRST_to_LAST/, where both viewers
    expect it. Each traced step is annotated with its number.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        profile: ConfigDict,
        steps: range,
        *,
        say: Callable[[str], None],
        paused: Callable[[], AbstractContextManager],
    ):
        self._directory, self._say, self._paused = str(directory), say, paused
        end = profile.start_step + profile.num_steps
        self._steps = range(max(profile.start_step, steps.start), min(end, steps.stop))
        self._is_tracing = False
        if steps and profile.num_steps and not self._steps:
            say(
                f"warning: nothing is profiled: config.profile covers steps "
                f"{profile.start_step:,} to {end - 1:,}, and this run takes steps "
                f"{steps.start:,} to {steps.stop - 1:,}"
            )

    @contextlib.contextmanager
    def step(self, number: int, state: Any) -> Iterator[None]:
        """Wraps the dispatch of a step, and traces the step if it is to be traced."""
        if number == self._steps.stop:
            self.close(state)
        if number not in self._steps:
            yield
            return
        if number == self._steps.start:
            # Keeps the work of earlier steps out of the trace.
            jax.block_until_ready(state)
            options = jax.profiler.ProfileOptions()
            # Tracing every Python call would slow down the traced steps.
            options.python_tracer_level = 0
            options.session_id = f"steps_{number}_to_{self._steps[-1]}"
            with self._paused():
                jax.profiler.start_trace(self._directory, profiler_options=options)
            self._is_tracing = True
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            yield

    def close(self, state: Any) -> None:
        """Ends and writes the trace, if one has begun, once `state` is computed."""
        if not self._is_tracing:
            return
        jax.block_until_ready(state)
        with self._paused():
            jax.profiler.stop_trace()
        self._is_tracing = False
        self._say(
            f"the profile is in {self._directory}; to view it: pip install xprof, "
            f"xprof --logdir={self._directory}"
        )
