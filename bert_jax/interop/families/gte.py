"""GTE: a post-norm BERT with rotary positions and GeGLU, of Alibaba's GTE v1.5 and multilingual.

`transformers` 5 writes packed projections, as Alibaba's own code, whose names begin with "new.".
It has separate ones in memory, which `save_original_format=False` writes.
"""

from bert_jax.interop.families import rotary
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.family import (
    SEQUENCES_AND_TOKENS,
    WITHOUT_POOLER,
    Family,
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
_NATIVE_LANGUAGE_MODEL = """
dense transform dense
norm layer_norm layer_norm
vector output_bias decoder.bias
"""
# The first parts of names of layers without biases.
_BIASLESS = ("gate", "intermediate")
_COMMON = (
    Names("bert/embeddings/", "gte.embeddings.", _EMBEDDINGS),
    Names("bert/", "gte.", "dense pooler/dense pooler.dense"),
)

GTE = Family(
    title="GTE",
    recipe="gte",
    model_types=("gte", "new"),
    names=(
        *_COMMON,
        Names("bert/encoder/layer_{}/", "gte.encoder.layer.{}.", _LAYER, biasless=_BIASLESS),
        Names("mlm/", "lm_head.", _LANGUAGE_MODEL),
    ),
    other_names=(
        (
            *_COMMON,
            Names(
                "bert/encoder/layer_{}/",
                "gte.layers.{}.",
                rotary.POST_NORM_GATED,
                biasless=_BIASLESS,
            ),
            Names("mlm/", "lm_head.", _NATIVE_LANGUAGE_MODEL),
        ),
    ),
    pretraining_classes=masked_lm_classes("Gte", WITHOUT_POOLER),
    task_classes=task_classes("Gte", SEQUENCES_AND_TOKENS),
    tokenizer="XLMRobertaTokenizer",
    config_keys={**BERT.config_keys, **rotary.ROTARY_KEYS},
    # The activation of the masked-LM head is always gelu, regardless of hidden_act.
    fixed={"hidden_act": "gelu", "gated": True, "biasless": ("inner",)},
    spelling=rotary.spelling(160_000.0),
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
    renamed_classes={"^New": "Gte"},
    # Those of Alibaba's NewConfig.
    defaults_of_type={"new": {"rope_theta": 10_000.0, "max_position_embeddings": 2048}},
    tied={"lm_head.decoder.weight": "gte.embeddings.word_embeddings.weight"},
)
