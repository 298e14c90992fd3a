"""What the families with rotary positions of `transformers` 5 share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.base.errors import UserError
from bert_jax.interop.family import Spelling, same_keys
from bert_jax.models import BertConfig

# The names of attention in memory: shorthand, our name, Hugging Face's.
ATTENTION = """
heads attention/query self_attn.q_proj
heads attention/key self_attn.k_proj
heads attention/value self_attn.v_proj
heads_output attention/output self_attn.o_proj
"""
# The same and the LayerNorms, in families with LayerNorm after each residual sum.
POST_NORM = f"""{ATTENTION}
norm attention_layer_norm post_attention_layernorm
norm output_layer_norm post_mlp_layernorm
"""
_GATED = """
dense intermediate mlp.gate_proj
dense gate mlp.up_proj
dense output mlp.down_proj
"""
LLAMA_LAYER = ATTENTION + _GATED
POST_NORM_GATED = POST_NORM + _GATED
# The tables of embeddings in memory and in files.
TABLES = """
table word_embeddings word_embeddings.weight
table token_type_embeddings token_type_embeddings.weight
"""
# The first parts of names of the layers without biases, if all projections have none.
BIASLESS = ("attention", "gate", "intermediate", "output")
# Tensors of older files, which follow from the config.
BUFFERS = (r".*inv_freq",)
# Keys of `config.model` with the names that `spelling` gives them.
ROTARY_KEYS = same_keys("rope_theta rope_scale")
_SAME_KEYS = """
vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act
max_position_embeddings initializer_range
"""
# What a config.json of Llama's parts has.
LLAMA_KEYS = {
    **same_keys(_SAME_KEYS),
    "attention_probs_dropout_prob": "attention_dropout",
    **ROTARY_KEYS,
}
LLAMA_CONSTANTS = {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}
LLAMA_TOKEN_IDS = {
    "bos_token_id": "cls_id",
    "eos_token_id": "sep_id",
    "mask_token_id": "mask_id",
    "pad_token_id": "pad_id",
}


def spelling(theta: float) -> Spelling:
    """Makes the spelling of `rope_parameters`, with `rope_theta` and `rope_scaling` of older files.

    Args:
      theta: The default of transformers' class.
    """

    def read(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
        rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
        depth = config["hidden_size"] // config["num_attention_heads"]
        if config.get("head_dim") not in (None, depth):
            raise UserError(f"{path}: head_dim is {config['head_dim']!r}; it must be {depth}")
        kind = rope.get("rope_type", rope.get("type", "default"))
        base, factor = rope.get("rope_theta", config.get("rope_theta", theta)), 1.0
        # Of "dynamic", only rows beyond max_position_embeddings differ.
        known = ("default", "dynamic", "linear", "ntk")
        if kind not in known or rope.get("partial_rotary_factor", 1.0) != 1:
            raise UserError(f"{path}: the rotary positions are {rope!r}, which is not supported")
        if kind == "linear":
            factor = rope["factor"]
        elif kind == "ntk":  # The code beside GTE's first files.
            base, factor = base * rope["factor"], rope["factor"] ** (2 / depth)
        return {"rope_theta": base, "rope_scale": factor}

    def write(model: BertConfig) -> dict[str, Any]:
        if not model.rope_theta:
            raise UserError("config.model.rope_theta is 0; this family has rotary positions")
        rope = {"rope_theta": model.rope_theta, "rope_type": "default"}
        if model.rope_scale != 1:
            rope |= {"rope_type": "linear", "factor": model.rope_scale}
        return {"rope_parameters": rope}

    return Spelling(read, write, tuple(ROTARY_KEYS.values()))
