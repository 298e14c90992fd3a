"""The keys of a model's config, ours and those of other programs."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop.family import Family
from bert_jax.models import BertConfig

# Keys that change how the model is computed or initialised, not what it computes.
_NOT_OF_THE_MODEL = ("sinusoidal_positions", "dtype", "scan_layers", "remat", "fused_attention")
# The keys that describe a model, with their defaults; None for keys without a default.
MODEL_KEYS = {
    field.name: None if field.default is dataclasses.MISSING else field.default
    for field in dataclasses.fields(BertConfig)
    if field.name not in _NOT_OF_THE_MODEL
}

# No dimension of a real model is larger; larger ones overflow or fill the memory.
_MAX_SIZE = 2**24


def read_model_keys(
    config: Mapping[str, Any], keys: Mapping[str, str], activations: Mapping[str, str], path: Path
) -> dict[str, Any]:
    """Reads the keys of `config.model` out of another program's config.

    Args:
      config: The other config.
      keys: Maps our keys to those of the other config.
      activations: Maps its names of activations to ours.
      path: The file, for messages.

    Raises:
      UserError: Keys are missing or have values that no model can have.
    """
    missing = [k for ours, k in keys.items() if MODEL_KEYS[ours] is None and k not in config]
    if missing:
        raise UserError(f"{path} has no {', '.join(missing)}")
    model = dict(MODEL_KEYS)
    for ours, theirs in keys.items():
        model[ours] = config.get(theirs, MODEL_KEYS[ours])
        problem = _problem(ours, model[ours])
        if problem:
            raise UserError(f"{path}: {theirs} is {model[ours]!r}; it must be {problem}")
    if model["hidden_act"] not in activations:
        raise UserError(
            f"{path}: hidden_act is {model['hidden_act']!r}; it must be one of "
            f"{', '.join(activations)}"
        )
    model["hidden_act"] = activations[model["hidden_act"]]
    if model["hidden_size"] % model["num_attention_heads"]:
        raise UserError(
            f"{path}: num_attention_heads is {model['num_attention_heads']}, which does not divide "
            f"hidden_size, {model['hidden_size']}"
        )
    return model


def write_model_keys(model: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Returns the keys of another program's config and their values."""
    return {theirs: model[ours] for ours, theirs in keys.items()}


def check_constants(config: Mapping[str, Any], family: Family, path: Path) -> None:
    """Raises UserError if a config.json has a value that the family does not support."""
    for key, value in family.constants.items():
        if config.get(key, value) != value:
            raise UserError(f"{path}: {key} is {config[key]!r}; only {value!r} is supported")


def _problem(key: str, value: Any) -> str:
    """Returns what the value of one of our keys must be; empty if it is."""
    default = MODEL_KEYS[key]
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(default, str):
        return "" if isinstance(value, str) else "a name"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "a number"
    if default is None or isinstance(default, int):
        is_size = isinstance(value, int) and 0 < value <= _MAX_SIZE
        return "" if is_size else f"a whole number above 0, and at most {_MAX_SIZE}"
    if key.endswith("_prob"):
        return "" if 0 <= value < 1 else "at least 0 and below 1"
    return "" if 0 < value < math.inf else "above 0"
