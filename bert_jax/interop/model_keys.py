"""Converts the keys of a model's config between bert_jax and other programs."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.base.errors import UserError
from bert_jax.config.checks import check_rules, model_rules
from bert_jax.config.common import MODEL
from bert_jax.config.schema import Owner
from bert_jax.interop.family import Family, computed
from bert_jax.models import BertConfig
from bert_jax.models.task_models import TaskModel
from bert_jax.tokenizers import Tokenizer
from bert_jax.training import workdir

# The keys that describe a model, with their defaults; None for keys without a default.
MODEL_KEYS = {
    field.name: None if field.default is dataclasses.MISSING else field.default
    for field in dataclasses.fields(BertConfig)
    if field.name in MODEL
}
# Keys that affect only training, not the function that the model computes. A generator is
# exported to a directory of its own.
TRAINING_ONLY = {key for key, field in MODEL.items() if field.owner is not Owner.WEIGHTS}
# Names of activations in `transformers`, with ours.
_ACTIVATIONS = {
    "gelu_python": "gelu",
    **dict.fromkeys(("gelu_accurate", "gelu_fast", "gelu_pytorch_tanh"), "gelu_new"),
    "swish": "silu",
}


def read_model_keys(
    config: Mapping[str, Any], keys: Mapping[str, str], path: Path
) -> dict[str, Any]:
    """Reads the keys of `config.model` from another program's config, the file `path`."""
    model = dict(MODEL_KEYS)
    for ours, theirs in keys.items():
        value = config.get(theirs, model[ours])
        if ours == "hidden_act":
            value = _ACTIVATIONS.get(str(value), value)
        MODEL[ours].check(f"{path}: {theirs}", value)
        model[ours] = value
    ours = ConfigDict({"model": model})
    check_rules(model_rules(ours), ours, f"{path}: ")
    return model


def current_keys(config: Mapping[str, Any], family: Family, path: Path) -> dict[str, Any]:
    """Returns the keys of a config.json, the file `path`, as `Family.config_keys` names them."""
    if config.get("per_layer_config"):
        raise UserError(
            f"{path}: per_layer_config gives layers sizes of their own, which bert_jax lacks"
        )
    return {**family.defaults, **family.read_config(dict(config), path)}


def read_family_keys(config: Mapping[str, Any], family: Family, path: Path) -> dict[str, Any]:
    """Reads the keys of `config.model` from what `current_keys` returns for the file `path`."""
    for ours, theirs in family.config_keys.items():
        if MODEL_KEYS[ours] is None:
            MODEL[ours].check(f"{path}: {theirs}", config.get(theirs))
    for key, value in computed(family.constants, config).items():
        # Classes of transformers take null for False.
        if config.get(key, value) not in ((value, None) if value is False else (value,)):
            raise UserError(f"{path}: {key} is {config[key]!r}; it must be {value!r}")
    keys = family.config_keys
    for ours, names in family.value_names.items():
        # If our default is none of the family's values, the first is that of transformers.
        default = names.get(MODEL_KEYS[ours], next(iter(names.values())))
        value = config.get(keys[ours], default)
        known = [name for name, theirs in names.items() if theirs == value]
        if not known:
            choices = " or ".join(map(repr, names.values()))
            raise UserError(f"{path}: {keys[ours]} is {value!r}; it must be {choices}")
        config = {**config, keys[ours]: known[0]}
    model = read_model_keys(config, keys, path)
    fixed = computed(family.fixed, model)
    for key, value in fixed.items():
        if key in keys and model[key] != value:
            raise UserError(f"{path}: {keys[key]} is {model[key]!r}; it must be {value!r}")
    return model | fixed


def dropout_warnings(
    config: Mapping[str, Any], model: Mapping[str, Any], family: Family, path: Path
) -> list[str]:
    """Warns of the dropouts of a config.json that bert_jax lacks or has with another rate.

    They change only training, so such a model is read. A rate of 0 or null says nothing: a head
    has our dropout all the same.
    """
    ours = {**family.written, "classifier_dropout": TaskModel.DROPOUT}
    ours |= {theirs: model[key] for key, theirs in family.config_keys.items()}
    lost = [
        f"{key}={value!r}"
        for key, value in config.items()
        if "drop" in key and value and not isinstance(value, bool)
        if value != ours.get(key)
    ]
    if not lost:
        return []
    return [f"{path}: bert_jax ignores {', '.join(lost)}, which only training uses"]


def write_family_keys(
    model: Mapping[str, Any], family: Family, source: str, tokenizer: Tokenizer | None = None
) -> dict[str, Any]:
    """Makes the keys of a config.json that describe a model, the path `source`, and its tokens."""
    keys, fixed = family.config_keys, computed(family.fixed, model)
    for key, default in MODEL_KEYS.items():
        allowed = list(family.value_names.get(key, ()))
        if not (key in TRAINING_ONLY or (key in keys and key not in fixed)):
            allowed = [fixed.get(key, default)]
        if allowed and model[key] not in allowed:
            raise UserError(
                f"config.model.{key} of {source} is {model[key]!r}; a {family.title} of "
                f"transformers has only {' or '.join(map(repr, allowed))}"
            )
    shape = BertConfig(**model)
    values = {
        **model,
        # Where bert_jax has 0 for "the default", transformers has the number itself.
        "embedding_size": shape.embedding_width,
        "layer_groups": shape.num_groups,
        "num_key_value_heads": shape.key_value_heads,
        **{key: names[model[key]] for key, names in family.value_names.items()},
    }
    config = {theirs: values[ours] for ours, theirs in keys.items()}
    config |= {"torch_dtype": "float32", **computed(family.written, config)}
    config = family.write_config(config, shape)
    if tokenizer:
        config |= {key: getattr(tokenizer, name) for key, name in family.token_ids.items()}
    for key, value in computed(family.constants, config).items():
        if config.get(key, value) != value:
            raise UserError(
                f"{key} of {source} is {config[key]!r}; a {family.title} of transformers has only "
                f"{value!r}"
            )
    return config


def read_terms(
    training: Mapping[str, Any], family: Family, causal: bool, class_name: str = ""
) -> tuple[str, ...]:
    """Finds the terms of a model.

    They come from its training config if there is one, otherwise from the class `class_name` if
    it has terms that the family's first class lacks, otherwise from the first class.
    """
    config = training.get("config")
    if config and not workdir.is_finetuning(config):
        return config_lib.from_dict(config).objective.terms
    default = family.pretraining_class(causal, terms=None).terms
    classes = [c for c in family.pretraining_classes if c.name == class_name]
    own = next((c.terms for c in classes if c.causal == causal), default)
    return default if set(own) <= set(default) else own
