"""The config of pre-training: its defaults, its cross-field checks, and old config.json files."""

import json

import pytest

from bert_jax.base.errors import UserError
from bert_jax.config import (
    default_config,
    finetune_config,
    from_dict,
    max_predictions,
    read_stored,
    stage,
    to_dict,
    validate,
    validate_data,
)
from bert_jax.config.pretraining import PRETRAINING
from bert_jax.config.schema import flatten
from bert_jax.pretraining.build import make_objective


def changed(**values):
    """Returns the default config with other values; `__` stands for a dot."""
    config = default_config()
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in values.items()})
    return config


def refusal(config):
    with pytest.raises(UserError) as error:
        validate(config)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_defaults_are_valid_and_berts_own():
    config = default_config()
    validate(config)
    # BERT-base. All other keys of the model are off.
    model = config.model.to_dict()
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")
    assert [model[key] for key in sizes] == [30522, 768, 12, 3072]
    assert (model["hidden_dropout_prob"], model["layer_norm_eps"]) == (0.1, 1e-12)
    assert (config.train.num_steps, config.train.batch_size) == (1_000_000, 256)
    assert (config.schedule.peak_learning_rate, config.schedule.warmup_steps) == (1e-4, 10_000)
    stages = config.train.stages
    assert [s.fraction for s in stages] == [0.9, 0.1]
    assert [s.max_seq_length for s in stages] == [128, 512]
    assert [s.max_predictions_per_seq for s in stages] == [0, 0]
    assert [max_predictions(s, config.data) for s in stages] == [20, 80]


DENOISING = {
    "data__corruption": "denoising",
    "data__rows": "whole_sentences",
    "data__mask_fractions": (0.9, 0.0, 0.1),
}
FASTBPE = {
    "data__tokenizer": "fastbpe",
    "data__lowercase": False,
    "data__special_tokens": "roberta",
}


@pytest.mark.parametrize(
    "values, words",
    [
        (
            {"model__num_attention_heads": 7},
            "config.model.hidden_size is 768 and config.model.num_attention_heads is 7: the number "
            "of heads must divide the width",
        ),
        ({"model__type_vocab_size": 1}, "such rows have two token types"),
        ({"init_from": "a", "resume_from": "b"}, "config.init_from is 'a' and config.resume_from"),
        ({"objective__weights": (1.0,)}, "config.objective.weights is (1.0,)"),
        ({"objective__terms": (), "objective__weights": ()}, "there must be one term"),
        ({"objective__terms": ("masked_lm", "masked_lm")}, "each only once"),
        ({"data__mask_fractions": (0.8, 0.1, 0.2)}, "three fractions that add up to 1"),
        ({"data__mask_fractions": (0.9, 0.1)}, "three fractions that add up to 1"),
        ({"data__max_pairs_per_row": 2, "model__causal": True}, "only models that read both ways"),
        ({"data__max_pairs_per_row": 2, "data__rows": "full_sentences"}, "no room for others"),
        ({"data__rows": "fitted_documents"}, "several documents share such a row"),
        ({"data__corruption": "denoising"}, "config.data.rows is 'pairs' and config.data.corrupt"),
        ({"data__corruption": "denoising", "data__rows": "segments"}, "denoising keeps no span"),
        ({**DENOISING, "data__max_pairs_per_row": 2}, "denoising has a target for each row"),
        ({"data__tokenizer": "byte_bpe"}, "this tokenizer keeps the case; set lowercase to False"),
        (
            {"data__tokenizer": "tokenizer_json", "data__lowercase": False},
            "this tokenizer is not trained here",
        ),
        ({**FASTBPE, "data__special_tokens": "bert"}, "needs the special tokens roberta"),
        ({**FASTBPE, "data__whole_word_masking": True}, "set word_boundaries to spaces"),
        ({**FASTBPE, **DENOISING}, "set word_boundaries to spaces"),
        ({"data__sources": "en=a", "data__input": "b"}, "the sources name their texts"),
        ({"data__sources": "en=a", "data__language": "de"}, "the sources name their texts"),
        (
            {
                "data__sources": "en=a",
                "data__sampling_exponent": 0.7,
                "data__source_weights": "en=1",
            },
            "set the exponent to 1, or leave the weights out",
        ),
        ({"data__special_tokens": "camembert"}, "need the tokenizer sentencepiece"),
        ({"data__tokenizer": "moses_bpe"}, "needs the special tokens xlm"),
        ({"model__head_transform": False, "model__embedding_size": 64}, "the width hidden_size"),
        ({"model__head_transform": False, "model__generator_size": 0.5}, "the latter is True"),
        (
            {"schedule__shape": "cosine", "schedule__decay_power": 2.0},
            "config.schedule.decay_power is 2.0 and config.schedule.shape is 'cosine': the former "
            "has no effect unless the latter is bert or linear_after_warmup or product, so leave "
            "it at 1.0",
        ),
    ],
)
def test_inconsistent_values_are_refused(values, words):
    assert words in refusal(changed(**values))


FIELDS = dict(flatten(PRETRAINING))
# Other values for keys whose defaults give an effect to the keys that depend on them.
WITHOUT_EFFECT = {
    "data.tokenizer": "byte_bpe",
    "data.rows": "halves",
    "schedule.shape": "constant",
    "model.num_decoder_layers": 2,
    "model.rope_theta": 10_000.0,
    "model.head_transform": False,
}


@pytest.mark.parametrize("key", [key for key, field in FIELDS.items() if field.only_with])
def test_a_key_without_effect_is_refused(key):
    field, default = FIELDS[key], FIELDS[key].default
    owner, *allowed = field.only_with
    values = {}
    if FIELDS[owner].default in allowed:
        values[owner] = WITHOUT_EFFECT[owner]
    if isinstance(default, str):
        value = next(choice for choice in field.choices if choice != default)
    elif isinstance(default, bool):
        value = not default
    else:
        value = type(default)(default / 2) if default else type(default)(1)
    message = refusal(changed(**values, **{key: value}))
    assert f"config.{key} is {value!r} and config.{owner} is " in message
    assert "has no effect unless" in message


def test_consistent_values_are_accepted():
    validate(changed(model__type_vocab_size=1, data__rows="segments"))
    validate(changed(objective__terms=("my.module:Term", "b"), objective__weights=(2, 1.0)))
    validate(changed(data__mask_fractions=(1, 0, 0)))
    validate(changed(**DENOISING, data__poisson_lambda=3.5, data__permute_sentence_ratio=0.0))
    validate(changed(data__corruption="my.module:Own", data__poisson_lambda=3.5))


def test_finetuning_config_is_refused():
    assert "for fine-tuning (mrpc), which python -m bert_jax.fine" in refusal(
        finetune_config("mrpc")
    )


def test_validate_data_checks_only_the_data_section():
    data = default_config().data
    validate_data(data)
    data.heldout_fraction = 0.6
    with pytest.raises(UserError, match="heldout_fraction is 0.6; .* and at most 0.5"):
        validate_data(data)


def test_round_trip_through_json():
    config = changed(data__input=("a/*.txt", "b/*.txt"), model__hidden_size=96)
    config.train.stages = (stage(max_seq_length=64, batch_size=8, peak_learning_rate=6e-3),)
    values = json.loads(json.dumps(to_dict(config)))
    assert values["data"]["input"] == ["a/*.txt", "b/*.txt"]
    assert values["train"]["stages"][0]["peak_learning_rate"] == 6e-3
    again = from_dict(values)
    validate(again)
    assert to_dict(again) == to_dict(config)
    assert again.data.input == ("a/*.txt", "b/*.txt")


def test_missing_keys_get_their_defaults():
    values = to_dict(changed(model__hidden_size=96))
    del values["family"], values["objective"], values["model"]["causal"], values["data"]["rows"]
    assert to_dict(from_dict(values)) == to_dict(changed(model__hidden_size=96))


def test_a_decoder_needs_a_term_that_trains_it():
    config = default_config()
    config.model.num_decoder_layers = 2
    with pytest.raises(UserError, match="num_decoder_layers is 2, but .* by the term denoising"):
        make_objective(config)


def test_a_config_of_another_version_is_refused(tmp_path):
    """Version 0.1, for example, had keys that are gone."""
    values = to_dict(default_config()) | {"scan_layers": False}
    with pytest.raises(UserError, match="^config.scan_layers is not a known key"):
        from_dict(values)
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="config.json is not a config of this version of bert_jax"):
        read_stored(tmp_path / "config.json")
