"""What a run prints about its config."""

import bert_jax
from bert_jax.config.command_line import ConfigSource
from bert_jax.pretraining import settings


def test_only_differences_from_the_file_are_printed(capsys):
    config = bert_jax.load_config("tiny")
    source = ConfigSource("tiny", config.copy_and_resolve_references())
    settings.print_differences(config, source)
    config.train.num_steps = 7
    settings.print_differences(config, source)
    expected = "config.train.num_steps is 7, not 2500 as in tiny\n"
    assert capsys.readouterr().out == expected


def test_a_flag_gives_no_warning_about_its_own_key():
    source = ConfigSource("tiny", bert_jax.load_config("tiny"), frozenset({"train.num_steps"}))
    warnings = [
        "config.train.num_steps was 6 and is now 9: ...",
        "config.schedule.warmup_steps is 10: in 9 steps ...",
        "the run repeats the text ...",
    ]
    assert settings.unflagged(warnings, source) == warnings[1:]
