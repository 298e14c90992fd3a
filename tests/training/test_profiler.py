"""The steps in a trace, also for interrupted runs."""

import jax
from ml_collections import ConfigDict

from bert_jax.training.profiler import StepProfiler


def annotated_steps(trace):
    """Returns the numbers of the steps that are annotated in an xplane.pb, in order."""
    events = [
        event
        for plane in jax.profiler.ProfileData.from_file(str(trace)).planes
        for line in plane.lines
        for event in line.events
        if event.name.split("#")[0] == "train"
    ]
    return [dict(event.stats)["step_num"] for event in events]


class Pause:
    """A context manager that counts its uses."""

    def __init__(self):
        self.entered = 0

    def __call__(self):
        return self

    def __enter__(self):
        self.entered += 1

    def __exit__(self, *_):
        pass


def profile_steps(directory, printed, pause, steps=range(1, 7), **values):
    """Takes the steps; returns their number."""
    profile = ConfigDict({"start_step": 2, "num_steps": 3} | values)
    profiler = StepProfiler(directory, profile, steps, say=printed.append, paused=pause)
    add, state = jax.jit(lambda x: x + 1), jax.numpy.zeros([])
    for number in range(1, 7):
        with profiler.step(number, state):
            state = add(state)
    profiler.close(state)
    return int(state)


def test_only_the_configured_steps_are_traced(tmp_path):
    printed, pause = [], Pause()
    assert profile_steps(tmp_path, printed, pause) == 6
    (trace,) = tmp_path.glob("plugins/profile/steps_2_to_4/*.xplane.pb")
    assert annotated_steps(trace) == [2, 3, 4]
    assert pause.entered == 2, "starting and writing a trace must not count as training time"
    # Other processes take the same steps.
    for arguments in ({"num_steps": 0}, {"steps": range(0)}):
        other = tmp_path / "none"
        assert profile_steps(other, printed, pause, **arguments) == 6
        assert not other.exists()
    assert len(printed) == 1 and pause.entered == 2


def test_a_run_without_the_steps_to_trace_gives_a_warning(tmp_path):
    for steps in (range(5, 7), range(1, 2)):
        printed, pause = [], Pause()
        profile_steps(tmp_path, printed, pause, steps)
        assert not list(tmp_path.iterdir()) and not pause.entered
        (warning,) = printed
        assert warning.startswith("warning: nothing is profiled: config.profile covers steps 2 to")
