"""The keys of config.model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.base.errors import UserError
from bert_jax.config.schema import Field, Section
from bert_jax.models.bert_config import BertConfig

MODEL: Section = {
    key.name: Field(**key.metadata) for key in dataclasses.fields(BertConfig) if key.metadata
}

# Options of encoders that no model with a decoder has.
_NO_DECODER = ("norm", "rope_theta", "gated", "biases", "classifier_pooling")


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
    if model["num_decoder_layers"]:
        for key in ("layer_groups", "embedding_size", "causal", *_NO_DECODER):
            if model[key] != MODEL[key].default:
                raise UserError(
                    f"{source}config.model.{key} is {model[key]}, but config.model."
                    f"num_decoder_layers is {model['num_decoder_layers']}; a model with a decoder "
                    f"has only {MODEL[key].default}"
                )
    if model["layer_groups"] > model["num_hidden_layers"]:
        raise UserError(
            f"{source}config.model.layer_groups is {model['layer_groups']}, more than "
            f"config.model.num_hidden_layers, {model['num_hidden_layers']}"
        )
    if (model["global_every"] > 1) != (model["local_attention"] > 0):
        raise UserError(
            f"{source}config.model.local_attention is {model['local_attention']} and "
            f"config.model.global_every is {model['global_every']}; a model with local layers "
            "needs a window and global_every above 1, any other model 0 and 1"
        )
    if model["local_attention"] == 1:
        raise UserError(
            f"{source}config.model.local_attention is 1, a window without neighbors; it must be at "
            "least 2"
        )
    if model["local_rope_theta"] and not (model["rope_theta"] and model["local_attention"]):
        raise UserError(
            f"{source}config.model.local_rope_theta is {model['local_rope_theta']:g}, but "
            f"config.model.rope_theta is {model['rope_theta']:g} and config.model.local_attention "
            f"is {model['local_attention']}; only a model with both has such layers"
        )
    head_depth = model["hidden_size"] // model["num_attention_heads"]
    if model["rope_theta"] and head_depth % 2:
        raise UserError(
            f"{source}config.model.rope_theta is {model['rope_theta']:g}, but heads are "
            f"{head_depth} wide; rotary positions need an even width"
        )
    differs = model["norm"] == "pre_and_final" or model["global_every"] > 1
    if model["layer_groups"] and differs:
        raise UserError(
            f"{source}config.model.layer_groups is {model['layer_groups']}, but layers with "
            f"config.model.norm={model['norm']} and config.model.global_every="
            f"{model['global_every']} differ and cannot share their parameters"
        )
    for key, allowed in (("embedding_size", (0, model["hidden_size"])), ("generator_size", (0,))):
        if not model["head_transform"] and model[key] not in allowed:
            raise UserError(
                f"{source}config.model.{key} is {model[key]}, but config.model.head_transform is "
                f"False; without that layer it must be {' or '.join(map(str, allowed))}"
            )
