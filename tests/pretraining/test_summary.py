"""The commands that a finished run proposes."""

import pytest

import bert_jax
from bert_jax.config import default_config
from bert_jax.pretraining.summary import next_commands, pairs_per_step
from bert_jax.training.stages import resolve_stages


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("tiny", "sotu", ["predict fill-mask", "evaluate", "main --config=mini_laptop"]),
        ("tiny", "a/*.txt", ["predict fill-mask", "evaluate", "finetune", "convert"]),
        ("electra:tiny", "sotu", ["predict detect", "evaluate", "main --config=electra:tiny"]),
        ("electra:tiny", "a/*.txt", ["predict detect", "evaluate", "finetune", "convert"]),
        ("ablations:ltr_tiny", "a/*.txt", ["evaluate", "finetune", "convert"]),
    ],
)
def test_the_next_commands_fit_the_run(name, data, expected):
    config = bert_jax.load_config(name)
    config.data.input = (data,)
    found = next_commands(config, "my runs/one").values()
    assert len(found) == len(expected)
    for command, words in zip(found, expected, strict=True):
        assert all(word in command.split() for word in words.split()), command
    assert all("'my runs/one'" in command or "main " in command for command in found)


def test_rows_that_keep_a_recipe_are_a_multiple_of_the_devices():
    _, stage = resolve_stages(default_config())
    found = pairs_per_step(stage, pairs_per_row=1.6, parts=32)
    assert "a step of 256 rows has about 410 pairs" in found
    assert "config.train.stages[1].batch_size=160" in found
    assert "batch_size=32," in pairs_per_step(stage, pairs_per_row=100.0, parts=32)
