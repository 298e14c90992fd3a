"""ESM-C, of proteins: SwiGLU, normalized queries and keys, and a decoder of its own.

Of a protein with several chains, `transformers` can keep the chains apart (`sequence_id`), bert_jax
not. EsmcTokenizer makes an <unk> of white space, which is dropped here, and one of each unknown
letter, where a run of them is one here.
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
vector attention/query_layer_norm/scale self_attn.q_norm.weight
vector attention/key_layer_norm/scale self_attn.k_norm.weight
norm attention_layer_norm input_layernorm
norm output_layer_norm post_attention_layernorm
dense intermediate mlp.gate_proj
dense gate mlp.up_proj
dense output mlp.down_proj
"""
_LANGUAGE_MODEL = """
dense transform dense
norm layer_norm layer_norm
table output_embeddings decoder.weight
vector output_bias decoder.bias
"""
_CONSTANTS = {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}
_classes = task_classes(
    "Esmc",
    SEQUENCES_AND_TOKENS,
    classifier="classifier.out_proj",
    poolers={"sequence_classification": "classifier.dense"},
)
_classes["token_classification"] = _classes["token_classification"]._replace(
    output=Names("classifier/", "", "output dense score")
)

ESMC = Family(
    title="ESM-C",
    # Its own recipe is not published. ESM-2's rows and masks serve to continue it.
    recipe="esm",
    model_types=("esmc",),
    names=(
        Names("bert/embeddings/", "esmc.", "table word_embeddings embed_tokens.weight"),
        Names(
            "bert/encoder/layer_{}/",
            "esmc.layers.{}.",
            _LAYER,
            biasless=("attention", "gate", "intermediate", "output"),
        ),
        Names("bert/encoder/layer_norm/", "esmc.norm.", "vector scale weight"),
        Names("mlm/", "lm_head.", _LANGUAGE_MODEL),
    ),
    pretraining_classes=(
        PreTrainingClass(
            "EsmcForMaskedLM",
            terms=("masked_lm",),
            weights=("bert/embeddings/", "bert/encoder/", "mlm/"),
            pipeline="fill-mask",
        ),
        PreTrainingClass("EsmcModel", (), ("bert/embeddings/", "bert/encoder/")),
    ),
    task_classes=_classes,
    tokenizer="EsmcTokenizer",
    config_keys={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_hidden_layers",
        "num_attention_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "hidden_act": "hidden_act",
        "attention_probs_dropout_prob": "attention_dropout",
        "max_position_embeddings": "max_position_embeddings",
        "initializer_range": "initializer_range",
        **ROTARY_KEYS,
    },
    repeated_keys={"num_key_value_heads": "num_attention_heads"},
    fixed={
        "norm": "all_pre_and_final",
        "gated": True,
        "biasless": ("attention", "inner", "output", "final_norm"),
        "qk_norm": True,
        "residual_depth": 36,
        "head_act": "gelu",
        "tied_decoder": False,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-5,
        "hidden_dropout_prob": 0.0,
    },
    spelling=rotary(10_000.0),
    defaults={
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "max_position_embeddings": 2048,
    },
    constants=_CONSTANTS,
    written=_CONSTANTS | {"torch_dtype": "float32"},
    token_ids={
        "bos_token_id": "cls_id",
        "eos_token_id": "sep_id",
        "mask_token_id": "mask_id",
        "pad_token_id": "pad_id",
    },
    encoder_prefixes=("esmc.",),
    buffers=BUFFERS,
    base_prefixes=("embed_tokens.", "layers.", "norm."),
)
