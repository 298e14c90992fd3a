"""The settings of generation in the files of transformers."""

import json

import pytest

from bert_jax.base.errors import UserError
from bert_jax.config.task_sections import TASK_SECTIONS
from bert_jax.interop.generation import (
    FILE,
    generation_keys,
    read_generation,
    search_of,
    write_generation,
)
from bert_jax.interop.pretrained import Pretrained
from bert_jax.models.generation import Search
from tests.interop.small_bert import make_tokenizer

TOKENIZER = make_tokenizer("roberta")
# facebook/bart-large-cnn's, with keys that change nothing.
NEWS = {
    "_from_model_config": True,
    "bos_token_id": 0,
    "decoder_start_token_id": 2,
    "early_stopping": True,
    "eos_token_id": [2],
    "forced_bos_token_id": 0,
    "forced_eos_token_id": 2,
    "length_penalty": 2.0,
    "max_length": 142,
    "min_length": 56,
    "no_repeat_ngram_size": 3,
    "num_beams": 4,
    "pad_token_id": 1,
    "repetition_penalty": None,
    "temperature": 0.5,
    "do_sample": False,
}


MODEL = {"vocab_size": TOKENIZER.vocab_size, "max_position_embeddings": 200}


def pretrained(stored, config=None):
    return Pretrained("DIR", MODEL, {}, TOKENIZER, [], {"config": config}, generation=stored)


def search(stored, config=None, **given):
    keys = generation_keys(pretrained(stored, config))
    return search_of(keys, given, model=MODEL, default_max_new_tokens=30, source="DIR")


def test_settings_of_a_directory(tmp_path):
    expected = Search(
        decoder_start_token_id=2,
        eos_token_id=2,
        pad_token_id=1,
        max_new_tokens=141,
        num_beams=4,
        length_penalty=2.0,
        early_stopping=True,
        min_length=56,
        no_repeat_ngram_size=3,
        forced_bos_token_id=0,
        forced_eos_token_id=2,
    )
    assert search(read_generation(tmp_path, NEWS)) == expected, "the keys of config.json"
    write_generation(pretrained(NEWS), tmp_path)
    stored = read_generation(tmp_path, {"num_beams": 7})
    assert search(stored) == expected, "generation_config.json has precedence"
    assert json.loads((tmp_path / FILE).read_text())["max_length"] == 142
    given = search(stored, num_beams=1, max_new_tokens=9, min_length=0, length_penalty=None)
    assert (given.num_beams, given.max_new_tokens, given.length_penalty) == (1, 9, 2.0)


def test_a_model_without_settings_ends_with_its_separator():
    found = search({})
    assert (found.decoder_start_token_id, found.eos_token_id) == (TOKENIZER.sep_id,) * 2
    assert found.forced_eos_token_id == TOKENIZER.sep_id and found.forced_bos_token_id is None
    assert (found.num_beams, found.max_new_tokens) == (1, 30)


def test_a_fine_tuned_model_has_the_settings_of_its_task():
    task = {key: field.default for key, field in TASK_SECTIONS["seq2seq"].items()}
    found = search({}, {"seq2seq": task | {"num_beams": 3, "max_target_length": 50}})
    assert (found.num_beams, found.max_new_tokens) == (3, 50)
    found = search({"num_beams": 2}, {"seq2seq": task})
    assert found.num_beams == 2, "the files of an export are read"


def test_an_export_of_a_model_without_settings_has_no_maximum(tmp_path):
    write_generation(pretrained({}), tmp_path)
    stored = read_generation(tmp_path, {})
    assert "max_length" not in stored and search(stored) == search({})


@pytest.mark.parametrize(
    ("stored", "given", "message"),
    [
        ({"do_sample": True}, {}, "DIR has do_sample=True .* not supported"),
        ({"bad_words_ids": [[5]]}, {}, r"bad_words_ids=\[\[5\]\]"),
        ({"watermarking_config": {"bias": 2.0}}, {}, "watermarking_config={'bias': 2.0}"),
        ({"token_healing": True}, {}, "token_healing=True"),
        ({"dola_layers": "high"}, {}, "dola_layers='high'"),
        (
            {"eos_token_id": [2, 3]},
            {},
            r"eos_token_id in generation_config.json or config.json is \[2, 3\]; for",
        ),
        ({"max_length": 900}, {}, "max_length - 1 in .*config.json is 899; for DIR it must"),
        ({}, {"num_beams": 0}, "num_beams is 0"),
        ({}, {"max_new_tokens": 201}, "max_new_tokens is 201; for DIR it must be from 1 to 200"),
        ({}, {"length_penalty": float("nan")}, "length_penalty is nan"),
        (
            {},
            {"length_penalty": 10.5},
            "length_penalty is 10.5; it must be a number from -10 to 10",
        ),
        ({}, {"early_stopping": 1}, "early_stopping is 1"),
        ({}, {"max_new_tokens": 9, "min_length": 11}, "min_length is 11, but max_new_tokens is 9;"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(stored, given, message):
    with pytest.raises(UserError, match=message):
        search(stored, **given)
