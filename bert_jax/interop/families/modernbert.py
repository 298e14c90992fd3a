"""ModernBERT, and with it Ettin's encoders and mmBERT: one class of `transformers`.

The two spellings of its attention in a config.json are both read and written: transformers 4 knows
`global_attn_every_n_layers`, `global_rope_theta` and `local_rope_theta`, version 5 writes
`layer_types` and `rope_parameters`, which version 4 ignores.
"""

from pathlib import Path

from bert_jax.base.errors import UserError
from bert_jax.interop.families import rotary
from bert_jax.interop.family import Family, Keys, Names, masked_lm_classes, same_keys, task_classes
from bert_jax.models import BertConfig

_EMBEDDINGS = """
table word_embeddings tok_embeddings.weight
vector layer_norm/scale norm.weight
"""
_LAYER = """
heads_in@0/3 attention/query_kernel attn.Wqkv.weight
heads_in@1/3 attention/key_kernel attn.Wqkv.weight
heads_in@2/3 attention/value_kernel attn.Wqkv.weight
heads_out attention/output_kernel attn.Wo.weight
vector attention_layer_norm/scale attn_norm.weight
vector output_layer_norm/scale mlp_norm.weight
matrix@0/2 intermediate/kernel mlp.Wi.weight
matrix@1/2 gate/kernel mlp.Wi.weight
matrix output/kernel mlp.Wo.weight
"""
_LANGUAGE_MODEL = """
matrix transform/kernel head.dense.weight
vector layer_norm/scale head.norm.weight
vector output_bias decoder.bias
"""
_SAME_KEYS = """
vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size
max_position_embeddings initializer_range local_rope_theta local_attention classifier_pooling
"""
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
# The defaults of transformers' ModernBertConfig.
_GLOBAL_EVERY, _WINDOW, _GLOBAL_THETA, _LOCAL_THETA = 3, 128, 160_000.0, 10_000.0
_CONSTANTS = {
    "attention_bias": False,
    "mlp_bias": False,
    "norm_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
    "classifier_activation": "gelu",
    "tie_word_embeddings": True,
}


def _read_config(config: Keys, path: Path) -> Keys:
    """Makes the keys of transformers 4; those of version 5 win where a file has both."""
    rotary.check_sizes(config, ("num_hidden_layers",), path)
    every = config.get("global_attn_every_n_layers", _GLOBAL_EVERY)
    num_layers = config["num_hidden_layers"]
    if (types := config.get("layer_types")) is not None:
        fitting = [n for n in range(1, num_layers + 1) if types == _layer_types(n, num_layers)]
        if not fitting:
            raise UserError(
                f"{path}: layer_types is {types!r}; it must name {num_layers} layers, of which the "
                f"first and then every n-th is {_GLOBAL} and the others are {_LOCAL}"
            )
        every = fitting[-1]
    # A local theta of null means that of global layers.
    local_theta = config.get("local_rope_theta", _LOCAL_THETA)
    thetas = {
        _GLOBAL: config.get("global_rope_theta", _GLOBAL_THETA),
        _LOCAL: 0.0 if local_theta is None else local_theta,
    }
    scaling, ropes = (
        rotary.dictionary(config, key, path) for key in ("rope_scaling", "rope_parameters")
    )
    if others := ropes.keys() - thetas.keys():
        raise UserError(
            f"{path}: rope_parameters has {min(others)}; it must have only {_GLOBAL} and {_LOCAL}"
        )
    for kind in thetas:
        rope = {**rotary.dictionary(ropes, kind, path), **scaling}
        rotary.checked_kind(rope, path, {"default": ()})
        thetas[kind] = rope.get("rope_theta", thetas[kind])
    has_local = every != 1
    window = config.get("local_attention", _WINDOW)
    if config.get("sliding_window") is not None:
        window = 2 * config["sliding_window"]
    return config | {
        "global_attn_every_n_layers": every,
        "local_attention": window if has_local else 0,
        "global_rope_theta": thetas[_GLOBAL],
        "local_rope_theta": thetas[_LOCAL] if has_local else 0.0,
    }


def _write_config(config: Keys, model: BertConfig) -> Keys:
    thetas = {_GLOBAL: model.theta(False), _LOCAL: model.theta(True)}
    return config | {
        "local_attention": model.local_attention or _WINDOW,
        "local_rope_theta": thetas[_LOCAL],
        "layer_types": _layer_types(model.global_every, model.num_hidden_layers),
        "rope_parameters": {
            kind: {"rope_theta": theta, "rope_type": "default"} for kind, theta in thetas.items()
        },
    }


def _layer_types(every: int, num_layers: int) -> list[str]:
    return [_LOCAL if i % every else _GLOBAL for i in range(num_layers)]


MODERNBERT = Family(
    title="ModernBERT",
    recipe="modernbert",
    model_types=("modernbert",),
    names=(
        Names("bert/embeddings/", "model.embeddings.", _EMBEDDINGS),
        Names("bert/encoder/layer_{}/", "model.layers.{}.", _LAYER),
        Names("bert/encoder/layer_norm/", "model.final_norm.", "vector scale weight"),
        Names("mlm/", "", _LANGUAGE_MODEL),
    ),
    pretraining_classes=masked_lm_classes("ModernBert"),
    task_classes=task_classes("ModernBert", outputs={"QuestionAnswering": "classifier"}),
    tokenizer="ModernBertTokenizer",
    config_keys={
        **same_keys(_SAME_KEYS),
        "hidden_act": "hidden_activation",
        "hidden_dropout_prob": "embedding_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "norm_eps",
        "rope_theta": "global_rope_theta",
        "global_every": "global_attn_every_n_layers",
    },
    value_names={"classifier_pooling": {"cls": "cls", "mean": "mean"}},
    # The activation of the masked-LM head is always gelu, regardless of hidden_activation.
    fixed={
        "hidden_act": "gelu",
        "norm": "pre_and_final",
        "gated": True,
        "biases": False,
        "type_vocab_size": 0,
    },
    defaults={
        "embedding_dropout": 0.0,
        "attention_dropout": 0.0,
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
    },
    constants=_CONSTANTS,
    written=_CONSTANTS | {"mlp_dropout": 0.0},
    token_ids={
        "bos_token_id": "cls_id",
        "cls_token_id": "cls_id",
        "eos_token_id": "sep_id",
        "sep_token_id": "sep_id",
        "pad_token_id": "pad_id",
    },
    encoder_prefixes=("model.",),
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    read_config=_read_config,
    write_config=_write_config,
)
