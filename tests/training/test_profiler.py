"""The steps in a trace, also for interrupted runs."""

import jax

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


def profile_steps(directory, printed, pause, done=0, **arguments):
    """Runs the steps after `done` up to the sixth; returns the number of steps."""
    profiler = StepProfiler(directory, done=done, say=printed.append, paused=pause, **arguments)
    add, state = jax.jit(lambda x: x + 1), jax.numpy.zeros([])
    for number in range(done + 1, 7):
        with profiler.step(number, state):
            state = add(state)
    profiler.close(state)
    return int(state)


def test_only_the_configured_steps_are_traced(tmp_path):
    printed, pause = [], Pause()
    assert profile_steps(tmp_path, printed, pause, start_step=2, num_steps=3) == 6
    (trace,) = tmp_path.glob("plugins/profile/steps_2_to_4/*.xplane.pb")
    assert annotated_steps(trace) == [2, 3, 4]
    assert pause.entered == 2, "starting and writing a trace must not count as training time"
    for arguments in ({"num_steps": 0}, {"num_steps": 3, "enabled": False}):
        other = tmp_path / "none"
        assert profile_steps(other, printed, pause, start_step=2, **arguments) == 6
        assert not other.exists()
    assert len(printed) == 1 and pause.entered == 2


def test_run_after_the_traced_steps_gives_a_warning(tmp_path):
    printed, pause = [], Pause()
    assert profile_steps(tmp_path, printed, pause, start_step=2, num_steps=3, done=4) == 2
    assert not list(tmp_path.iterdir()) and not pause.entered
    assert printed == [
        "warning: nothing is profiled: config.profile covers steps 2 to 4, and this run is "
        "already at step 4"
    ]
