"""When a run counts as finished."""

import json

import pytest
from etils import epath

from bert_jax.training.engine import _finished


@pytest.mark.parametrize(
    "config, step, num_steps, is_finished",
    [
        ({}, 60, 60, True),
        ({}, 60, 80, False),
        ({}, 40, 60, False),
        # Its checkpoints were removed: there are no weights, so it is trained again.
        ({}, None, 60, False),
        # A sweep removes the checkpoints of its runs, and reads their results again.
        ({"task": "mrpc"}, None, 60, True),
        ({"task": "mrpc"}, 40, 60, False),
    ],
)
def test_a_run_is_finished_if_its_last_checkpoint_is_that_of_its_results(
    config, step, num_steps, is_finished, tmp_path
):
    results = {"step": 60}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "report.html").touch()
    shown = []
    found = _finished(
        epath.Path(tmp_path),
        step,
        num_steps,
        show=lambda results, directory: shown.append(results),
        write_pages=lambda directory: pytest.fail("the pages exist"),
    )
    assert found == (results if is_finished else None)
    assert shown == [results] * is_finished
