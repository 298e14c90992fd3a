"""The config keys of the model, which `bert_jax.models.bert_config` declares."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.base.errors import UserError
from bert_jax.config.schema import Field, Section
from bert_jax.models.bert_config import BertConfig

MODEL: Section = {
    key.name: Field(**key.metadata) for key in dataclasses.fields(BertConfig) if key.metadata
}


def check_model(model: Mapping[str, Any], source: str = "") -> None:
    """Refuses values of MODEL that contradict each other.

    Args:
      model: The keys of MODEL, with values in range.
      source: What comes before the key in messages: "FILE: ".

    Raises:
      UserError: The message names the keys.
    """
    if model["hidden_size"] % model["num_attention_heads"]:
        raise UserError(
            f"{source}config.model.num_attention_heads is {model['num_attention_heads']}, which "
            f"does not divide config.model.hidden_size, {model['hidden_size']}"
        )
    if model["layer_groups"] > model["num_hidden_layers"]:
        raise UserError(
            f"{source}config.model.layer_groups is {model['layer_groups']}, more than "
            f"config.model.num_hidden_layers, {model['num_hidden_layers']}"
        )
