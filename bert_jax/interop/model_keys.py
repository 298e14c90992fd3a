"""The keys of a model's config, ours and those of other programs."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.config.pretraining import MODEL
from bert_jax.errors import UserError
from bert_jax.models import BertConfig

# The keys that describe a model, with their defaults; None for keys without a default.
MODEL_KEYS = {
    field.name: None if field.default is dataclasses.MISSING else field.default
    for field in dataclasses.fields(BertConfig)
    if field.name in MODEL
}


def read_model_keys(
    config: Mapping[str, Any], keys: Mapping[str, str], activations: Mapping[str, str], path: Path
) -> dict[str, Any]:
    """Reads the keys of `config.model` from another program's config, the file `path`.

    Raises:
      UserError: Keys are missing or have values that no model can have.
    """
    model = dict(MODEL_KEYS)
    for ours, theirs in keys.items():
        value = config.get(theirs, model[ours])
        if value is None:
            raise UserError(f"{path} has no {theirs}")
        if ours == "hidden_act":
            value = activations.get(str(value), value)
        MODEL[ours].check(f"{path}: {theirs}", value)
        model[ours] = value
    hidden_size, num_heads = model["hidden_size"], model["num_attention_heads"]
    if hidden_size % num_heads:
        raise UserError(f"{path}: {num_heads} attention heads do not divide width {hidden_size}")
    return model


def write_model_keys(model: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Returns the keys of another program's config and their values."""
    return {theirs: model[ours] for ours, theirs in keys.items()}
