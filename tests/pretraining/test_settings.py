"""What a run prints about its config."""

import pytest

import bert_jax
from bert_jax.config.command_line import ConfigSource
from bert_jax.pretraining import settings


def test_only_differences_from_the_file_are_printed(capsys):
    config = bert_jax.load_config("tiny")
    source = ConfigSource("tiny", config.copy_and_resolve_references())
    settings.describe(config, source)
    config.train.num_steps = 7
    settings.describe(config, source)
    expected = "config.train.num_steps is 7, not 2500 as in tiny\n"
    assert capsys.readouterr().out == expected


def test_a_flag_gives_no_warning_about_its_own_key():
    source = ConfigSource("tiny", bert_jax.load_config("tiny"), frozenset({"train.num_steps"}))
    warnings = [
        "config.train.num_steps was 6 and is now 9: ...",
        "config.schedule.warmup_steps is 10: in 9 steps ...",
        "the run repeats the text ...",
    ]
    assert settings.unasked(warnings, source) == warnings[1:]


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
    found = settings.next_commands(config, "my runs/one").values()
    assert len(found) == len(expected)
    for command, words in zip(found, expected, strict=True):
        assert all(word in command.split() for word in words.split()), command
    assert all("'my runs/one'" in command or "main " in command for command in found)
