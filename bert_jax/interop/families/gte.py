"""GTE: a post-norm BERT with rotary positions and GeGLU, of Alibaba's GTE v1.5 and multilingual.

`transformers` 5 writes packed projections, as Alibaba's own code, whose names begin with "new.".
It has separate ones in memory, which `save_original_format=False` writes.
"""

import re
from pathlib import Path

from bert_jax.interop.families import rotary
from bert_jax.interop.families.bert import BERT_KEYS
from bert_jax.interop.family import (
    SEQUENCES_AND_TOKENS,
    WITHOUT_POOLER,
    Family,
    Keys,
    Names,
    masked_lm_classes,
    task_classes,
)

_EMBEDDINGS = f"{rotary.TABLES}norm layer_norm LayerNorm"
_LAYER = """
heads@0/3 attention/query attention.qkv_proj
heads@1/3 attention/key attention.qkv_proj
heads@2/3 attention/value attention.qkv_proj
heads_output attention/output attention.o_proj
norm attention_layer_norm attn_ln
dense@0/2 gate mlp.up_gate_proj
dense@1/2 intermediate mlp.up_gate_proj
dense output mlp.down_proj
norm output_layer_norm mlp_ln
"""
_LANGUAGE_MODEL = """
dense transform dense
norm layer_norm norm
vector output_bias decoder.bias
"""
# The first parts of names of layers without biases.
_BIASLESS = ("gate", "intermediate")
# The defaults of Alibaba's own class, NewConfig.
_NEW = {"rope_theta": 10_000.0, "max_position_embeddings": 2048}


def _read_config(config: Keys, path: Path) -> Keys:
    if config.get("model_type") == "new":
        config = _NEW | config
        classes = config.get("architectures") or []
        config["architectures"] = [re.sub("^New", "Gte", name) for name in classes]
    return rotary.read_config(config, path, theta=160_000.0)


GTE = Family(
    title="GTE",
    recipe="gte",
    model_types=("gte", "new"),
    names=(
        Names("bert/embeddings/", "gte.embeddings.", _EMBEDDINGS),
        Names("bert/encoder/layer_{}/", "gte.encoder.layer.{}.", _LAYER, biasless=_BIASLESS),
        Names("bert/", "gte.", "dense pooler/dense pooler.dense"),
        Names("mlm/", "lm_head.", _LANGUAGE_MODEL),
    ),
    other_names=(
        Names(
            "bert/encoder/layer_{}/", "gte.layers.{}.", rotary.POST_NORM_GATED, biasless=_BIASLESS
        ),
        Names("mlm/", "lm_head.", "norm layer_norm layer_norm"),
    ),
    pretraining_classes=masked_lm_classes("Gte", WITHOUT_POOLER),
    task_classes=task_classes("Gte", SEQUENCES_AND_TOKENS),
    tokenizer="XLMRobertaTokenizer",
    config_keys={**BERT_KEYS, **rotary.ROTARY_KEYS},
    # The activation of the masked-LM head is always gelu, regardless of hidden_act.
    fixed={"hidden_act": "gelu", "gated": True, "biasless": ("inner",)},
    defaults={
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 8192,
        "type_vocab_size": 1,
    },
    constants={
        "layer_norm_type": "layer_norm",
        "logn_attention_scale": False,
        "position_embedding_type": "rope",
        "tie_word_embeddings": True,
    },
    written={"tie_word_embeddings": True},
    encoder_prefixes=("gte.",),
    renamed={r"^new\.": "gte."},
    tied={"lm_head.decoder.weight": "gte.embeddings.word_embeddings.weight"},
    read_config=_read_config,
    write_config=rotary.write_config,
)
