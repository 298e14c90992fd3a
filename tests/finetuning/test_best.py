"""The best evaluation of a run, which kills do not change."""

import json

import jax.numpy as jnp
import pytest

from bert_jax.finetuning.best import Best
from bert_jax.training import workdir
from bert_jax.training.state import TrainState


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([], -1),
        ([(10, 3.0), (20, 2.0)], 10),
        # The first of equal scores is the best.
        ([(10, 2.0), (20, 2.0), (25, 1.0)], 10),
        ([(10, 2.0), (20, 1.0), (25, 2.5)], 25),
        # An undefined score is worse than any other.
        ([(10, None), (20, -1.0), (25, None)], 20),
        ([(10, None), (20, None)], 20),
    ],
)
@pytest.mark.parametrize("resumed_after", [0, 1, 2, 3])
def test_best_by_scores(scores, best, resumed_after, tmp_path):
    params = {"w": jnp.ones(2)}
    found = Best(tmp_path, {})
    for number, (step, score) in enumerate(scores):
        if number == resumed_after:
            found = Best(tmp_path, json.loads(json.dumps(found.state())))
        found.update(TrainState(jnp.asarray(step), params, ()), score, [step])
    assert found.step == best
    assert found.results == ([best] if scores else None)
    assert workdir.saved_steps(tmp_path / workdir.BEST)[-1:] == ([best] if scores else [])


def test_what_a_killed_process_left_is_removed_and_what_is_gone_is_forgotten(tmp_path):
    params = {"w": jnp.ones(2)}
    found = Best(tmp_path, {})
    states = [found.state()]
    for step in (2, 4, 6):
        found.update(TrainState(jnp.asarray(step), params, ()), step, [])
        states.append(found.state())
    # Only the newest two are kept: the process that continues after step 2 has lost its best.
    found = Best(tmp_path, states[1])
    assert (found.step, found.last_step) == (-1, 2)
    assert workdir.saved_steps(tmp_path / workdir.BEST) == []
    found.update(TrainState(jnp.asarray(4), params, ()), 4.0, [])
    assert found.step == 4
