"""What the families with rotary positions of `transformers` 5 share."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bert_jax.base.errors import UserError
from bert_jax.config.common import MODEL
from bert_jax.interop.family import Keys, same_keys
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
# Keys of `config.model` with the names that `read_config` gives them.
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
ONE_KEY_A_QUERY = {"num_key_value_heads": lambda config: config["num_attention_heads"]}
LLAMA_TOKEN_IDS = {
    "bos_token_id": "cls_id",
    "eos_token_id": "sep_id",
    "mask_token_id": "mask_id",
    "pad_token_id": "pad_id",
}


# The keys of each kind of rotary positions. Of "dynamic", only rows beyond max_position_embeddings
# differ. "ntk" is of the code beside GTE's first files.
_KINDS = {"default": (), "dynamic": ("factor",), "linear": ("factor",), "ntk": ("factor",)}


def renamed(config: Keys, names: Mapping[str, str], path: Path) -> Keys:
    """Gives keys of the authors' code their names in `transformers`; two spellings must agree."""
    for old, new in names.items():
        value = config.pop(old, None)
        if value is not None and config.get(new) not in (None, value):
            raise UserError(f"{path}: {old} is {value!r} but {new} is {config[new]!r}")
        if value is not None:
            config[new] = value
    return config


def check_sizes(config: Keys, keys: Iterable[str], path: Path) -> None:
    """Raises UserError if a config.json lacks a size, or if it is no size."""
    for key in keys:
        MODEL[key].check(f"{path}: {key}", config.get(key))


def dictionary(config: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    """Returns a dictionary of a config.json, the file `path`; an empty one for null."""
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{path}: {key} is {value!r}; it must be a dictionary")
    return value or {}


def checked_kind(
    rope: Mapping[str, Any], path: Path, kinds: Mapping[str, tuple[str, ...]] = _KINDS
) -> str:
    """Returns the kind of rotary positions that a dictionary describes.

    Raises UserError if it is not one of `kinds`, or if the dictionary has other keys.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    known = {"rope_type": kind, "type": kind, "rope_theta": rope.get("rope_theta")}
    known |= {"partial_rotary_factor": 1} | {key: rope.get(key) for key in kinds.get(kind, ())}
    others = [key for key, value in rope.items() if value not in (None, known.get(key))]
    if others or kind not in kinds:
        key = others[0] if others and kind in kinds else "rope_type"
        raise UserError(
            f"{path}: {key} of the rotary positions is {rope.get(key, kind)!r}, which is not "
            "supported"
        )
    return kind


def read_config(config: Keys, path: Path, theta: float) -> Keys:
    """Makes ROTARY_KEYS of `rope_parameters`, or `rope_theta` and `rope_scaling` of older files.

    `theta` is the default of transformers' class.
    """
    check_sizes(config, ("hidden_size", "num_attention_heads"), path)
    # As in transformers, the first replaces the second.
    ropes = (dictionary(config, key, path) for key in ("rope_scaling", "rope_parameters"))
    keys = ("rope_theta", "partial_rotary_factor")
    rope = {key: config[key] for key in keys if key in config} | next(filter(None, ropes), {})
    depth = config["hidden_size"] // config["num_attention_heads"]
    if config.get("head_dim") not in (None, depth):
        raise UserError(f"{path}: head_dim is {config['head_dim']!r}; it must be {depth}")
    if config.get("num_key_value_heads") in (None, config["num_attention_heads"]):
        config.pop("num_key_value_heads", None)  # As many is the default of both programs.
    kind = checked_kind(rope, path)
    base, factor = rope.get("rope_theta", theta), 1.0
    if kind in ("linear", "ntk"):
        factor = rope.get("factor")
        MODEL["rope_theta"].check(f"{path}: rope_theta", base)
        MODEL["rope_scale"].check(f"{path}: factor of the rotary positions", factor)
    if kind == "ntk":
        base, factor = base * factor, factor ** (2 / depth)
    return config | {"rope_theta": base, "rope_scale": factor}


def write_config(config: Keys, model: BertConfig) -> Keys:
    """Makes `rope_parameters` of ROTARY_KEYS."""
    if not model.rope_theta:
        raise UserError("config.model.rope_theta is 0; this family has rotary positions")
    rope = {"rope_theta": model.rope_theta, "rope_type": "default"}
    if model.rope_scale != 1:
        rope |= {"rope_type": "linear", "factor": model.rope_scale}
    others = {key: value for key, value in config.items() if key not in ROTARY_KEYS}
    return others | {"rope_parameters": rope}
