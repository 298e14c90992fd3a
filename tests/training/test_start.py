"""The start of a run: the claim of its work directory, and the refusal of other runs."""

import re

import numpy as np
import pytest

from bert_jax import config as config_lib
from bert_jax import load_config
from bert_jax.base.errors import UserError
from bert_jax.config import default_config
from bert_jax.config.command_line import ConfigSource
from bert_jax.training import start, workdir


class FakeTokenizer:
    """A tokenizer with only the methods that a work directory uses."""

    def save(self, path):
        path.mkdir(parents=True, exist_ok=True)
        (path / "vocab.txt").write_text("[PAD]\n")


def claim(directory, config):
    """Checks and then claims a directory, like the start of a run."""
    warnings = start.check(directory, config)
    start.claim(directory, config)
    return warnings


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.hidden_size", 96),
        ("seed", 1),
        ("train.batch_size", 512),
    ],
)
def test_another_run_is_refused_with_the_difference(tmp_path, path, value):
    claim(tmp_path, default_config())
    before = (tmp_path / "config.json").read_text()
    config = default_config()
    config.update_from_flattened_dict({path: value})
    with pytest.raises(UserError) as error:
        claim(tmp_path, config)
    message = str(error.value)
    assert f"config.{path}" in message and repr(value) in message and str(tmp_path) in message
    assert "choose another --workdir" in message and "\n" not in message
    assert (tmp_path / "config.json").read_text() == before


def test_a_given_number_of_predictions_equals_the_same_derived_number(tmp_path):
    config = default_config()
    for entry, given in zip(config.train.stages, (20, 80), strict=True):
        entry.max_predictions_per_seq = given
    claim(tmp_path, config)
    assert claim(tmp_path, default_config()) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("workdir", "/elsewhere"),
        ("sharding", "fsdp"),
        ("remat", "full"),
        ("mesh.fsdp", 8),
        ("checkpoint.keep", 9),
        ("eval.every_steps", 3),
        ("data.num_threads", 1),
    ],
)
def test_keys_that_do_not_affect_the_result_may_change(tmp_path, path, value):
    claim(tmp_path, default_config())
    config = default_config()
    config.update_from_flattened_dict({path: value})
    assert claim(tmp_path, config) == []
    # The newest config is written.
    assert config_lib.to_dict(workdir.load_config(tmp_path)) == config_lib.to_dict(config)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_steps", 2_000_000, "the learning rate follows the new config.train.num_steps"),
        ("gradient_accumulation_steps", 4, "only up to rounding: .* was 1 and is now 4"),
    ],
)
def test_changes_that_are_allowed_with_a_warning(tmp_path, key, value, words):
    claim(tmp_path, default_config())
    config = default_config()
    config.train[key] = value
    (warning,) = claim(tmp_path, config)
    assert re.search(words, warning)


@pytest.mark.parametrize(
    ("step", "num_steps", "fractions", "refused"),
    [
        (60, 120, (0.75, 0.25), ""),
        (90, 180, (0.5, 0.5), ""),
        # The second stage is replaced, and a third is appended.
        (60, 180, (0.5, 0.25, 0.25), ""),
        (91, 180, (0.5, 0.5 / 90, 0.5 - 0.5 / 90), ""),
        (91, 100, (0.91, 0.09), "0].steps is '1 to 90', not '1 to 91'"),
        (91, 101, (1.0,), "0].steps is '1 to 90', not '1 to 91'"),
        # The run has ended: its steps are not compared with later ones.
        (100, 90, (1.0,), ""),
    ],
)
def test_stages_may_change_after_the_steps_that_have_run(
    tmp_path, step, num_steps, fractions, refused
):
    def config_of(num_steps, fractions, **values):
        config = default_config()
        config.train.num_steps = num_steps
        config.train.stages = tuple(
            config_lib.stage(fraction=fraction, max_seq_length=128 + 8 * i, **values)
            for i, fraction in enumerate(fractions)
        )
        return config

    claim(tmp_path, config_of(100, (0.9, 0.1)))
    (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    (tmp_path / "corpus.json").write_text("{}")
    config = config_of(num_steps, fractions)
    if refused:
        with pytest.raises(UserError, match=re.escape(f"its config.train.stages[{refused}; the")):
            claim(tmp_path, config)
        return
    (warning,) = claim(tmp_path, config)
    assert "learning rate follows the new config.train.num_steps and config.train.stages" in warning
    other = config_of(num_steps, fractions, weight_decay=0.5)
    with pytest.raises(UserError, match=r"stages\[0\].weight_decay is -1.0, not 0.5; the st"):
        claim(tmp_path, other)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("checkpoints/40/state", "", "holds checkpoints without their config.json, not"),
        ("metadata.json", "{}", "holds a token store .*; choose another --workdir"),
        ("config.json", "{", "config.json is damaged or another program's: JSONDecodeError"),
        ("config.json", '{"model_type": "bert"}', "holds the weights of a model; choose another"),
    ],
)
def test_directories_of_other_kinds_are_refused(tmp_path, file, content, words):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=words):
        start.check(tmp_path, default_config())


def test_missing_work_directory(tmp_path):
    with pytest.raises(UserError, match="is not a work directory of bert_jax"):
        workdir.load_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(
        UserError, match="config.json is not a config of this version of bert_jax: "
    ):
        workdir.load_config(tmp_path)


def test_corpus_must_match_the_claimed_one(tmp_path):
    counts = np.arange(5, dtype=np.int64)
    metadata = {"tokenizer": "abc", "splits": {"train": {"documents": 3}}}
    # Its files may have moved.
    for folder in ("here", "there"):
        metadata["sources"] = [{"path": f"{folder}/a.txt", "bytes": 9}]
        metadata["options"] = {"vocab_path": f"{folder}/v", "add_tokens": f"{folder}/words.txt"}
        start.claim_corpus(tmp_path, metadata, FakeTokenizer(), counts)
    assert (tmp_path / "tokenizer" / "vocab.txt").exists()
    np.testing.assert_array_equal(np.load(tmp_path / "token_counts.npy"), counts)
    other = metadata | {"splits": {"train": {"documents": 4}}}
    with pytest.raises(UserError, match=r"splits.train.documents was 3.*is now 4"):
        start.claim_corpus(tmp_path, other, FakeTokenizer(), counts)


def test_refused_start_leaves_no_new_directory(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    for name in ("there", "new", "new/inside", "used"):
        with pytest.raises(UserError), start.lock(tmp_path / name):
            if name == "used":
                (tmp_path / name / "config.json").touch()
            raise UserError("no")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there", "used"]


def test_only_differences_from_the_file_are_printed(capsys):
    config = load_config("tiny")
    source = ConfigSource("tiny", config.copy_and_resolve_references())
    start.print_differences(config, source)
    config.train.num_steps = 7
    start.print_differences(config, source)
    expected = "config.train.num_steps is 7, not 2500 as in tiny\n"
    assert capsys.readouterr().out == expected
