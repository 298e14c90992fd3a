"""The keys of stages: sizes, fractions, and what is refused."""

import pytest

from bert_jax.base.errors import UserError
from bert_jax.config import (
    default_config,
    derived_predictions,
    max_predictions,
    stage,
    validate,
)
from bert_jax.config.checks import check_rules, flag_rules


def refusal(config, check=validate):
    with pytest.raises(UserError) as error:
        check(config)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_predictions_follow_the_length_and_the_rate_unless_given():
    config = default_config()
    config.train.stages = tuple(stage(max_seq_length=length) for length in (5, 32, 64, 256))
    assert [max_predictions(s, config.data) for s in config.train.stages] == [2, 5, 10, 40]
    config.data.masked_lm_prob = 0.4
    assert [max_predictions(s, config.data) for s in config.train.stages] == [2, 15, 30, 105]
    config.train.stages = (stage(max_seq_length=512, max_predictions_per_seq=20),)
    assert max_predictions(config.train.stages[0], config.data) == 20


def test_predictions_suffice_for_the_pairs_of_a_row():
    """Each pair of a row may round its number of predictions up by a half."""
    found = [derived_predictions(128, 0.15, "masked_lm", pairs) for pairs in (1, 2, 4, 8)]
    assert found == [20, 20, 21, 23]
    found = [derived_predictions(512, 0.15, "masked_lm", pairs) for pairs in (1, 2, 4, 8)]
    assert found == [80, 80, 80, 80]


def test_predictions_have_room_for_whole_words_of_roberta():
    config = default_config()
    config.train.stages = tuple(stage(max_seq_length=length) for length in (33, 512))
    config.data.corruption = "roberta"
    assert [max_predictions(s, config.data) for s in config.train.stages] == [5, 80]
    config.data.whole_word_masking = True
    assert [max_predictions(s, config.data) for s in config.train.stages] == [22, 136]
    # BERT's whole words fill the number of tokens.
    config.data.corruption = "masked_lm"
    assert [max_predictions(s, config.data) for s in config.train.stages] == [5, 80]


def test_predictions_follow_the_rate_of_a_stage():
    config = default_config()
    config.train.stages = (stage(max_seq_length=1000, masked_lm_prob=0.3),)
    assert max_predictions(config.train.stages[0], config.data) == 300


@pytest.mark.parametrize(
    "stages, words",
    [
        (((0.9, 128, 20), (0.2, 512, 80)), "add up to 1.1, not to 1"),
        ((), "add up to 0, not to 1"),
        (((1.0, 513, 20),), "stages[0].max_seq_length is 513 and config.model.max_position_embed"),
        (((1.0, 4, 1),), "stages[0].max_seq_length is 4; it must be at least 5"),
    ],
)
def test_wrong_stages(stages, words):
    config = default_config()
    config.train.stages = tuple(
        stage(fraction=f, max_seq_length=length, max_predictions_per_seq=m)
        for f, length, m in stages
    )
    assert words in refusal(config)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"end_factor": 0.1},
            "stages[0].end_factor is 0.1 and config.train.stages[0].shape is '': the former has no",
        ),
        ({"warmup_steps": 5.0}, "the stage follows the schedule of the run; set one of the others"),
        ({"rope_theta": 1e4}, "stages[0].rope_theta is 10000.0 and config.model.rope_theta is 0."),
    ],
)
def test_keys_of_a_stage_without_effect_are_refused(values, words):
    config = default_config()
    config.train.stages = (stage(max_seq_length=128, **values),)
    assert words in refusal(config)


def test_a_key_that_every_stage_has_of_its_own_is_refused():
    config = default_config()
    for entry in config.train.stages:
        entry.update(shape="constant", weight_decay=0.5)
    config.train.stages[0].batch_size = 8
    for key in ("optimizer.weight_decay", "schedule.shape", "schedule.warmup_steps"):
        found = refusal(config, lambda c, key=key: check_rules(flag_rules(c, {key}), c))
        assert found.startswith(f"config.{key} is ") and "because every stage has its own" in found
    # The second stage follows the run.
    check_rules(flag_rules(config, {"train.batch_size", "schedule.peak_learning_rate"}), config)
    # An empty stage has no say.
    config.train.stages[0].fraction, config.train.stages[1].fraction = 0.0, 1.0
    config.train.stages[0].shape = ""
    assert "stages[1].shape is 'constant':" in refusal(
        config, lambda c: check_rules(flag_rules(c, {"schedule.shape"}), c)
    )


def test_rotary_bases_of_stages():
    config = default_config()
    config.model.rope_theta = 10.0
    for entry in config.train.stages:
        entry.rope_theta = 20.0
    validate(config)
    with pytest.raises(UserError, match="model.rope_theta is 10.* because every stage has its own"):
        check_rules(flag_rules(config, {"model.rope_theta"}), config)


@pytest.mark.parametrize(
    "key",
    [
        "data.masked_lm_prob",
        "data.mask_fractions",
        "data.whole_word_masking",
        "train.stages[1].masked_lm_prob",
        "train.stages[0].max_predictions_per_seq",
    ],
)
def test_flags_of_masks_are_refused_where_each_row_has_a_rate(key):
    config = default_config()
    config.data.corruption = "diffusion"
    found = refusal(config, lambda c: check_rules(flag_rules(c, {key}), c))
    assert f"config.{key} is" in found and "a rate that is drawn for each row" in found


@pytest.mark.parametrize("key", ["data.max_sentence_tokens", "data.short_seq_prob"])
def test_flags_that_would_cut_answers_are_refused(key):
    config = default_config()
    config.data.rows = "answers"
    found = refusal(config, lambda c: check_rules(flag_rules(c, {key}), c))
    assert f"config.{key} is" in found and "neither divided nor shortened" in found
