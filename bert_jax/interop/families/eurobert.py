"""EuroBERT: an encoder of Llama's parts, with RMSNorm, grouped keys and values, and SwiGLU.

Without a `classifier_pooling`, a config.json means late: the mean of the logits of all tokens.
"""

from bert_jax.interop.families.rotary import ATTENTION, BUFFERS, ROTARY_KEYS, rotary
from bert_jax.interop.family import (
    SEQUENCES_AND_TOKENS,
    Family,
    Names,
    PreTrainingClass,
    task_classes,
)

# layout or shorthand, our name, Hugging Face's
_LAYER = f"""{ATTENTION}
vector attention_layer_norm/scale input_layernorm.weight
vector output_layer_norm/scale post_attention_layernorm.weight
dense intermediate mlp.gate_proj
dense gate mlp.up_proj
dense output mlp.down_proj
"""
_CONSTANTS = {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}

_classes = task_classes("EuroBert", SEQUENCES_AND_TOKENS)
# The layer before the output layer, which only the class for sequences has.
_classes["sequence_classification"] = _classes["sequence_classification"]._replace(
    pooler=Names("mlm/", "", "dense transform dense")
)

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
            biasless=("attention", "gate", "intermediate", "output"),
        ),
        Names("bert/encoder/layer_norm/", "model.norm.", "vector scale weight"),
        Names("mlm/", "lm_head.", "table output_embeddings weight"),
    ),
    pretraining_classes=(
        PreTrainingClass(
            "EuroBertForMaskedLM",
            terms=("masked_lm",),
            weights=("bert/", "mlm/"),
            pipeline="fill-mask",
        ),
        PreTrainingClass("EuroBertModel", terms=(), weights=("bert/",)),
    ),
    task_classes=_classes,
    tokenizer="EuroBertTokenizer",
    config_keys={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_hidden_layers",
        "num_attention_heads": "num_attention_heads",
        "num_key_value_heads": "num_key_value_heads",
        "intermediate_size": "intermediate_size",
        "hidden_act": "hidden_act",
        "attention_probs_dropout_prob": "attention_dropout",
        "max_position_embeddings": "max_position_embeddings",
        "initializer_range": "initializer_range",
        "layer_norm_eps": "rms_norm_eps",
        "classifier_pooling": "classifier_pooling",
        **ROTARY_KEYS,
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
    spelling=rotary(10_000.0),
    defaults={
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
    },
    # The key of the authors' code.
    renamed_keys={"clf_pooling": "classifier_pooling"},
    constants=_CONSTANTS,
    written=_CONSTANTS | {"pretraining_tp": 1, "torch_dtype": "float32"},
    token_ids={
        "bos_token_id": "cls_id",
        "eos_token_id": "sep_id",
        "mask_token_id": "mask_id",
        "pad_token_id": "pad_id",
    },
    encoder_prefixes=("model.",),
    buffers=BUFFERS,
    base_prefixes=("embed_tokens.", "layers.", "norm."),
)
