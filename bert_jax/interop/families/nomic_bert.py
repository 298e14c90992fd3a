"""NomicBERT: a post-norm BERT with rotary positions and SwiGLU.

`transformers` 5 writes the names of Nomic's own code, but has others in memory, which
`save_original_format=False` writes. Nomic's own files begin the names of the encoder with "bert.",
with which NomicBertForMaskedLM would leave the encoder random, and have other keys in config.json.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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

_EMBEDDINGS = "nomic_bert.embeddings."
_LAYER = """
heads@0/3 attention/query attn.Wqkv
heads@1/3 attention/key attn.Wqkv
heads@2/3 attention/value attn.Wqkv
heads_output attention/output attn.out_proj
norm attention_layer_norm norm1
dense gate mlp.fc11
dense intermediate mlp.fc12
dense output mlp.fc2
norm output_layer_norm norm2
"""
_LANGUAGE_MODEL = """
dense transform transform.dense
norm layer_norm transform.layer_norm
vector output_bias bias
"""
_COMMON = (
    Names("bert/embeddings/", _EMBEDDINGS, rotary.TABLES),
    Names("bert/", "nomic_bert.", "dense pooler/dense pooler.dense"),
    Names("mlm/", "cls.predictions.", _LANGUAGE_MODEL),
)

_ROTARY = rotary.spelling(1000.0)


def _read_rotary(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    keys = _ROTARY.read(config, path)
    if config.get("rotary_scaling_factor"):
        # Nomic's code scales the positions of rows that are longer than in training.
        limits = (config[key] for key in ("max_position_embeddings", "max_trained_positions"))
        keys["max_position_embeddings"] = min(limits)
    return keys


NOMIC_BERT = Family(
    title="NomicBERT",
    recipe="nomic_bert",
    model_types=("nomic_bert",),
    names=(
        *_COMMON,
        Names("bert/embeddings/", "nomic_bert.", "norm layer_norm emb_ln"),
        Names(
            "bert/encoder/layer_{}/",
            "nomic_bert.encoder.layers.{}.",
            _LAYER,
            biasless=rotary.BIASLESS,
        ),
    ),
    other_names=(
        (
            *_COMMON,
            Names("bert/embeddings/", _EMBEDDINGS, "norm layer_norm LayerNorm"),
            Names(
                "bert/encoder/layer_{}/",
                "nomic_bert.layers.{}.",
                rotary.POST_NORM_GATED,
                biasless=rotary.BIASLESS,
            ),
        ),
    ),
    pretraining_classes=masked_lm_classes("NomicBert", WITHOUT_POOLER),
    task_classes=task_classes("NomicBert", SEQUENCES_AND_TOKENS),
    config_keys={**BERT.config_keys, **rotary.ROTARY_KEYS},
    fixed={"gated": True, "biasless": ("attention", "inner", "output")},
    spelling=_ROTARY._replace(read=_read_rotary),
    defaults={
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 2048,
        "max_trained_positions": 2048,
    },
    # Keys of Nomic's code.
    renamed_keys={
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
        "layer_norm_epsilon": "layer_norm_eps",
        "resid_pdrop": "hidden_dropout_prob",
        "embd_pdrop": "hidden_dropout_prob",
        "attn_pdrop": "attention_probs_dropout_prob",
        "rotary_emb_base": "rope_theta",
    },
    constants={
        "activation_function": "swiglu",
        "causal": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "norm_mlp": False,
        "parallel_block": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_head_dim": False,
        "use_rms_norm": False,
    },
    encoder_prefixes=("nomic_bert.",),
    renamed={r"^bert\.": "nomic_bert."},
    tied={
        "cls.predictions.decoder.weight": "nomic_bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    # The released head has only the weights.
    optional_tensors=("cls.predictions.transform.dense.bias", "cls.predictions.bias"),
)
