"""The schema: documented, validated, and round-tripped through JSON."""

import ast
import importlib
import inspect
import json
from pathlib import Path

import pytest

from bert_jax import config as config_lib
from bert_jax import validation
from bert_jax.config import (
    default_config,
    differences,
    from_dict,
    stage,
    to_dict,
)
from bert_jax.errors import UserError
from bert_jax.validation import check_batch, check_vocabulary, validate

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))


def changed(path, value):
    config = default_config()
    holder = config
    *folders, key = path.split(".")
    for folder in folders:
        holder = holder[folder]
    with holder.ignore_type():
        holder[key] = value
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
    assert config.model.to_dict() == {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
    }
    assert (config.train.num_steps, config.train.batch_size) == (1_000_000, 256)
    assert (config.schedule.peak_learning_rate, config.schedule.warmup_steps) == (1e-4, 10_000)
    stages = config.train.stages
    assert [s.fraction for s in stages] == [0.9, 0.1]
    assert [s.max_seq_length for s in stages] == [128, 512]
    assert [s.max_predictions_per_seq for s in stages] == [20, 80]


def commented(function):
    """The assignments of a function to attributes, and whether a comment stands above each.

    A comment speaks for the lines below it up to the next blank one or comment, where
    it names several keys at once (b1 and b2).
    """
    lines = inspect.getsource(function).splitlines()
    tree = ast.parse("\n".join(lines)).body[0]
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if (
                not isinstance(target, ast.Attribute)
                or isinstance(node.value, ast.Call)
                and (getattr(node.value.func, "id", "") == "ConfigDict")
            ):
                continue
            yield target.attr, lines[node.lineno - 2].strip()


@pytest.mark.parametrize("function", [default_config, stage])
def test_every_key_is_explained_above_it(function):
    found = list(commented(function))
    together = {"b2": "optimizer.b1 = 0.9", "fsdp": "mesh.data = -1", "model": "mesh.fsdp = 1"}
    for key, above in found:
        assert above.startswith("# ") or together.get(key) == above, f"{key}: {above}"
    keys = config_lib.flatten(function() if function is default_config else {"x": 1})
    expected = {path.split(".")[-1] for path, _ in keys}
    if function is stage:
        expected = set(inspect.signature(stage).parameters)
    assert {key for key, _ in found} == expected


@pytest.mark.parametrize(
    ("path", "value", "right"),
    [
        ("dtype", "float16", "float32, bfloat16"),
        ("sharding", "ddp", "dp, fsdp, tp, fsdp_tp"),
        ("remat", "some", "none, dots, full"),
        ("model.hidden_act", "swish", "gelu, gelu_new, relu"),
        ("data.format", "csv", "auto, documents, sentences, jsonl"),
        ("data.tokenizer", "bpe", "wordpiece, sentencepiece"),
        ("data.sentencepiece_type", "word", "unigram, bpe"),
        ("data.bad_documents", "ignore", "refuse, skip"),
        ("optimizer.name", "sgd", "adamw, lamb"),
        *((path, 0, "above 0") for path in validation._SHARED_POSITIVE + validation._POSITIVE),
        *(
            (path, -1, "not be negative")
            for path in validation._SHARED_NOT_NEGATIVE + validation._NOT_NEGATIVE
        ),
        *((path, 1.0, "below 1") for path in validation._SHARED_SHARES + validation._SHARES),
        ("schedule.peak_learning_rate", float("nan"), "above 0"),
        ("optimizer.weight_decay", float("nan"), "not be negative"),
        ("optimizer.weight_decay", float("inf"), "a finite number"),
        ("schedule.warmup_steps", float("inf"), "a finite number"),
        ("model.num_attention_heads", 7, "does not divide config.model.hidden_size, 768"),
        ("model.type_vocab_size", 1, "need 2"),
        ("mesh.data", 0, "above 0, or -1"),
        ("mesh.fsdp", -2, "above 0, or -1"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_right(path, value, right):
    message = refusal(changed(path, value))
    assert f"config.{path}" in message and str(value) in message and right in message


def test_two_inferred_mesh_axes():
    config = changed("mesh.fsdp", -1)
    assert "more than one axis of size -1" in refusal(config)


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        (((0.9, 128, 20), (0.2, 512, 80)), "add up to 1.1; it must be 1"),
        ((), "add up to 0; it must be 1"),
        (((1.5, 128, 20), (-0.5, 128, 20)), "fractions of config.train.stages"),
        (((1.0, 513, 20),), "stages[0].max_seq_length is 513, longer than the 512 positions"),
        (((1.0, 4, 1),), "stages[0].max_seq_length is 4; [CLS] A [SEP] B [SEP] needs at least 5"),
        (((1.0, 128, 126),), "stages[0].max_predictions_per_seq is 126; a sequence of 128 has at"),
        (((0.5, 128, 20), (0.5, 128, 0)), "stages[1].max_predictions_per_seq is 0"),
    ],
)
def test_wrong_stages(stages, told):
    config = default_config()
    config.train.stages = tuple(
        stage(fraction=f, max_seq_length=length, max_predictions_per_seq=m)
        for f, length, m in stages
    )
    assert told in refusal(config)


def test_profiled_steps_must_be_the_runs():
    config = default_config()
    config.train.num_steps = 12
    config.profile.update(start_step=10, num_steps=3)
    validate(config)
    config.profile.num_steps = 4
    assert refusal(config) == (
        "config.profile asks for steps 10 to 13, but the run ends with step 12; set an earlier "
        "config.profile.start_step or fewer config.profile.num_steps"
    )


@pytest.mark.parametrize("key", ["batch_size", "peak_learning_rate", "warmup_steps"])
def test_negative_stage_values(key):
    config = default_config()
    config.train.stages[1][key] = -1 if key == "batch_size" else -1.0
    assert "config.train.stages[1] has a negative" in refusal(config)


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("trian.num_steps", "train.num_steps"),
        ("model.num_layers", "model.num_hidden_layers"),
        ("model.hiden_size", "model.hidden_size"),
        ("checkpoint.every_step", "checkpoint.every_steps"),
        ("sede", "seed"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(path, nearest):
    config = default_config()
    holder = config
    *folders, key = path.split(".")
    for folder in folders:
        if folder not in holder:
            holder[folder] = {}
        holder = holder[folder]
    holder[key] = 1
    message = refusal(config)
    assert f"config.{path} is not a known key" in message
    assert message.endswith(f"did you mean config.{nearest}?")


def test_an_unknown_or_missing_stage_key():
    config = default_config()
    config.train.stages[0].max_seq_len = 128
    assert "stages[0].max_seq_len is not known" in refusal(config)
    assert "'max_seq_length'" in refusal(config)
    config = default_config()
    del config.train.stages[1].fraction
    assert "stages[1].fraction is not known or missing" in refusal(config)


def test_a_missing_key():
    config = default_config()
    del config.model.hidden_size
    assert "config.model.hidden_size is missing" in refusal(config)


def test_vocabulary_must_be_the_models():
    config = default_config()
    check_vocabulary(config, 30522, "x")
    with pytest.raises(UserError, match=r"30522.*vocab.txt has 28996.*model.vocab_size=28996"):
        check_vocabulary(config, 28996, "vocab.txt")


def test_batch_must_divide():
    config = default_config()
    check_batch(config, data_shards=64, num_processes=8)
    config.train.gradient_accumulation_steps = 8
    with pytest.raises(UserError) as error:
        check_batch(config, data_shards=64, num_processes=8)
    for told in ("config.train.batch_size is 256", "64 data shards", "8 host", "8 gradient", "512"):
        assert told in str(error.value)
    config.train.batch_size = 512
    check_batch(config, data_shards=64, num_processes=8)
    # Evaluation fills its last rows up; what no stage uses is not asked for.
    config.eval.batch_size = 65
    check_batch(config, data_shards=64, num_processes=8)
    config.train.stages[1].batch_size = 100
    with pytest.raises(UserError, match=r"train.stages\[1\].batch_size is 100"):
        check_batch(config, data_shards=64, num_processes=8)
    # Shards and hosts both divide it, though neither divides the other.
    config.train.stages[1].batch_size = 0
    config.train.batch_size = 96
    check_batch(config, data_shards=4, num_processes=6)
    with pytest.raises(UserError, match="train.batch_size"):
        check_batch(changed("train.batch_size", 8), data_shards=4, num_processes=6)


@pytest.mark.parametrize(
    "name, chips, accumulation",
    [
        ("base", 16, 1),
        ("large", 64, 1),
        ("large_lamb", 1024, 1),
        ("large_lamb", 16, 64),
        ("base_lamb", 256, 1),
    ],
)
def test_batches_divide_over_the_hardware_that_a_config_names(name, chips, accumulation):
    config = importlib.import_module(f"configs.{name}").get_config()
    config.train.gradient_accumulation_steps = accumulation
    check_batch(config, data_shards=chips, num_processes=max(1, chips // 4))


def test_round_trip_through_json():
    config = default_config()
    config.data.input = ("a/*.txt", "b/*.txt")
    config.model.hidden_size = 96
    config.train.stages = (
        stage(
            fraction=1.0,
            max_seq_length=64,
            max_predictions_per_seq=10,
            batch_size=8,
            peak_learning_rate=6e-3,
            warmup_steps=0.2843,
        ),
    )
    values = json.loads(json.dumps(to_dict(config)))
    assert values["data"]["input"] == ["a/*.txt", "b/*.txt"]
    assert values["train"]["stages"][0]["peak_learning_rate"] == 6e-3
    again = from_dict(values)
    validate(again)
    assert to_dict(again) == to_dict(config)
    assert again.data.input == ("a/*.txt", "b/*.txt")
    assert again.train.stages[0].warmup_steps == 0.2843
    # What was read is not changed by reading it.
    assert "stages" in values["train"]


@pytest.mark.parametrize(
    "harm",
    [
        lambda values: values["model"].update(new_key=1),
        lambda values: values["model"].update(hidden_size="wide"),
        lambda values: values["train"]["stages"][0].update(new_key=1),
        lambda values: values["train"].pop("stages"),
        lambda values: values.pop("train"),
        lambda values: values.pop("data"),
        lambda values: values.update(model=3),
    ],
)
def test_what_is_no_config_is_refused(harm):
    values = to_dict(default_config())
    harm(values)
    with pytest.raises(UserError, match="not a config of this version"):
        from_dict(values)


def test_differences_name_the_keys():
    old = to_dict(default_config())
    new = json.loads(json.dumps(old))
    assert differences(old, new) == {}
    new["model"]["hidden_size"] = 1
    new["seed"] = 5
    new["data"]["extra"] = None
    del new["log"]
    assert differences(old, new) == {
        "log.every_steps": (100, None),
        "model.hidden_size": (768, 1),
        "seed": (0, 5),
    }


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_file_is_valid_locked_and_says_what_it_is(path):
    names = {}
    source = path.read_text()
    exec(compile(source, str(path), "exec"), names)
    config = names["get_config"]()
    validate(config)
    assert config.is_locked
    with pytest.raises(AttributeError):
        config.new_key = 1
    docstring = ast.get_docstring(ast.parse(source))
    assert f"--config=configs/{path.name}" in docstring and "Hardware meant" in docstring
