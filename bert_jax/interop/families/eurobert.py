"""EuroBERT: an encoder of Llama's parts, with RMSNorm, grouped keys and values, and SwiGLU.

Without a `classifier_pooling`, a config.json means late: the mean of the logits of all tokens.
"""

from pathlib import Path

from bert_jax.interop.families import rotary
from bert_jax.interop.family import (
    SEQUENCES_AND_TOKENS,
    Family,
    Keys,
    Names,
    masked_lm_classes,
    same_keys,
    task_classes,
)

_LAYER = f"""{rotary.LLAMA_LAYER}
vector attention_layer_norm/scale input_layernorm.weight
vector output_layer_norm/scale post_attention_layernorm.weight
"""
_classes = task_classes("EuroBert", SEQUENCES_AND_TOKENS)
# The layer before the output layer, which only the class for sequences has.
_classes["SequenceClassification"] = _classes["SequenceClassification"]._replace(
    pooler=Names("mlm/", "", "dense transform dense")
)


def _read_config(config: Keys, path: Path) -> Keys:
    # The first key is that of the authors' code.
    config = rotary.renamed(config, {"clf_pooling": "classifier_pooling"}, path)
    return rotary.read_config(config, path, theta=10_000.0)


EUROBERT = Family(
    title="EuroBERT",
    recipe="eurobert",
    model_types=("eurobert",),
    names=(
        Names("bert/embeddings/", "model.", "table word_embeddings embed_tokens.weight"),
        Names(
            "bert/encoder/layer_{}/",
            "model.layers.{}.",
            _LAYER,
            biasless=rotary.BIASLESS,
        ),
        Names("bert/encoder/layer_norm/", "model.norm.", "vector scale weight"),
        Names("mlm/", "lm_head.", "table output_embeddings weight"),
    ),
    pretraining_classes=masked_lm_classes("EuroBert"),
    task_classes=_classes,
    tokenizer="EuroBertTokenizer",
    config_keys={
        **rotary.LLAMA_KEYS,
        **same_keys("num_key_value_heads classifier_pooling"),
        "layer_norm_eps": "rms_norm_eps",
    },
    value_names={"classifier_pooling": {"late": "late", "mean": "mean", "cls": "bos"}},
    fixed={
        "norm": "all_pre_and_final",
        "norm_kind": "rms",
        "gated": True,
        "biasless": ("attention", "inner", "output", "decoder"),
        "type_vocab_size": 0,
        "head_transform": False,
        "head_act": "gelu",
        "tied_decoder": False,
        "hidden_dropout_prob": 0.0,
    },
    defaults={
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
    },
    constants=rotary.LLAMA_CONSTANTS,
    written=rotary.LLAMA_CONSTANTS | {"pretraining_tp": 1},
    token_ids=rotary.LLAMA_TOKEN_IDS,
    encoder_prefixes=("model.",),
    read_config=_read_config,
    write_config=rotary.write_config,
)
