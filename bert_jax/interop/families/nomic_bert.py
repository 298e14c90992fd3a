"""NomicBERT: a post-norm BERT with rotary positions and SwiGLU.

`transformers` 5 writes the names of Nomic's own code, but has others in memory, which
`save_original_format=False` writes. Nomic's own files begin the names of the encoder with "bert.",
with which NomicBertForMaskedLM would leave the encoder random, and have other keys in config.json.
"""

from functools import partial
from pathlib import Path

import numpy as np

from bert_jax.interop.families import rotary
from bert_jax.interop.families.bert import BERT_KEYS
from bert_jax.interop.family import (
    SEQUENCES_AND_TOKENS,
    WITHOUT_POOLER,
    Family,
    Keys,
    Names,
    Tensor,
    masked_lm_classes,
    task_classes,
)
from bert_jax.models import BertConfig

_EMBEDDINGS, _HEAD = "nomic_bert.embeddings.", "cls.predictions."
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
# Keys of Nomic's code, and those of transformers.
_RENAMED = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
_RENAMED_DROPOUTS = {
    "resid_pdrop": "hidden_dropout_prob",
    "embd_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
}


def _read_config(config: Keys, path: Path) -> Keys:
    config = rotary.renamed(config, _RENAMED, path)
    for old, new in _RENAMED_DROPOUTS.items():
        # One that differs is ignored with a warning, as other dropouts.
        if config.get(old) is not None and config.get(new) in (None, config[old]):
            config[new] = config.pop(old)
    # There is no table of positions: their number only limits the rows.
    limits = [config.get(key) for key in ("n_positions", "max_position_embeddings")]
    limit = max((n for n in limits if n is not None), default=2048)
    if config.get("rotary_scaling_factor"):
        # Nomic's code scales the positions of rows that are longer than in training.
        limit = min(limit, config.get("max_trained_positions", 2048))
    config["max_position_embeddings"] = limit
    return rotary.read_config(config, path, theta=1000.0)


def _read_tensors(tensors: dict[str, Tensor], model: BertConfig, file: Path) -> Keys:
    """Adds the biases of the masked-LM head, which the released files lack, as zeros."""
    sizes = {"transform.dense.bias": model.hidden_size, "bias": model.vocab_size}
    for name, size in sizes.items():
        if f"{_HEAD}transform.dense.weight" in tensors and _HEAD + name not in tensors:
            tensors[_HEAD + name] = Tensor((size,), partial(np.zeros, size, np.float32))
    return {}


NOMIC_BERT = Family(
    title="NomicBERT",
    recipe="nomic_bert",
    model_types=("nomic_bert",),
    names=(
        Names("bert/embeddings/", _EMBEDDINGS, rotary.TABLES),
        Names("bert/embeddings/", "nomic_bert.", "norm layer_norm emb_ln"),
        Names(
            "bert/encoder/layer_{}/",
            "nomic_bert.encoder.layers.{}.",
            _LAYER,
            biasless=rotary.BIASLESS,
        ),
        Names("bert/", "nomic_bert.", "dense pooler/dense pooler.dense"),
        Names("mlm/", _HEAD, _LANGUAGE_MODEL),
    ),
    other_names=(
        Names("bert/embeddings/", _EMBEDDINGS, "norm layer_norm LayerNorm"),
        Names(
            "bert/encoder/layer_{}/",
            "nomic_bert.layers.{}.",
            rotary.POST_NORM_GATED,
            biasless=rotary.BIASLESS,
        ),
    ),
    pretraining_classes=masked_lm_classes("NomicBert", WITHOUT_POOLER),
    task_classes=task_classes("NomicBert", SEQUENCES_AND_TOKENS),
    config_keys={**BERT_KEYS, **rotary.ROTARY_KEYS},
    fixed={"gated": True, "biasless": ("attention", "inner", "output")},
    defaults={
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
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
    read_config=_read_config,
    write_config=rotary.write_config,
    read_tensors=_read_tensors,
)
