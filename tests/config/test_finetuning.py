"""The config of fine-tuning: its cross-field checks, and its completion from weights and data."""

import json

import pytest

from bert_jax.base.errors import UserError
from bert_jax.config import default_config, finetune_config, to_dict
from bert_jax.config.finetuning import (
    check_sweep_flags,
    filled_in,
    from_dict,
    user_config,
    validate,
)
from bert_jax.config.task_sections import TASKS


def changed(task, /, **values):
    config = finetune_config(task)
    values = {"init_from": "bert", "data__input": "folder"} | values
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in values.items()})
    return config


@pytest.mark.parametrize("task", TASKS)
def test_defaults_are_valid(task):
    validate(changed(task))


@pytest.mark.parametrize(
    "task, values, words",
    [
        ("mrpc", {"init_from": ""}, "config.init_from is '': set it to"),
        ("mrpc", {"data__input": ""}, "config.data.input is '': set it to"),
        ("table", {"task": "rte"}, "is rte, but the config file is for another task"),
        ("mrpc", {"sweep__seeds": (0, 1, 0)}, r"sweep.seeds is \(0, 1, 0\): give each value once"),
        (
            "mrpc",
            {"sweep__epochs": (2.0, 2)},
            r"sweep.epochs is \(2.0, 2.*\): give each value once",
        ),
        ("mrpc", {"task": "squad"}, "is squad, but the config file is for another task"),
    ],
)
def test_refusals(task, values, words):
    with pytest.raises(UserError, match=words):
        validate(changed(task, **values))


def test_pretraining_config_is_refused():
    with pytest.raises(UserError, match="for pre-training .python -m bert_jax.main"):
        validate(default_config())


def test_filled_in_takes_the_model_from_the_weights_except_dropout():
    config = changed("table", model__hidden_dropout_prob=0.3, sweep__seeds=(7,), dtype="float32")
    model = default_config().model.to_dict() | {"hidden_size": 96, "causal": True}
    filled = filled_in(config, model, "sequence_classification", ("no", "yes"))
    assert filled.model.to_dict() == model | {"hidden_dropout_prob": 0.3}
    again = from_dict(json.loads(json.dumps(to_dict(filled))))
    assert to_dict(again) == to_dict(filled)
    assert again.labels == ("no", "yes") and again.sweep.seeds == (7,)
    assert to_dict(user_config(filled)) == to_dict(config)


@pytest.mark.parametrize(
    ("epochs", "given", "is_sweep", "words"),
    [
        ((0.0,), {"sweep.seeds"}, False, "--config.sweep.seeds has no effect without --sweep"),
        ((0.0,), {"seed"}, True, "--config.seed has no effect with --sweep, .*sweep.seeds=0,1,2,3"),
        ((1.0, 2.0), {"train.num_epochs"}, True, "num_epochs .*--sweep, .*sweep.epochs=1.0,2.0"),
        ((0.0,), {"train.num_epochs", "sweep.seeds"}, True, ""),
        ((0.0,), {"seed", "train.batch_size", "schedule.peak_learning_rate"}, False, ""),
    ],
)
def test_what_has_no_effect_with_or_without_a_sweep_is_refused(epochs, given, is_sweep, words):
    config = finetune_config("table")
    config.sweep.epochs = epochs
    if not words:
        check_sweep_flags(config, given, is_sweep)
        return
    with pytest.raises(UserError, match=words):
        check_sweep_flags(config, given, is_sweep)
