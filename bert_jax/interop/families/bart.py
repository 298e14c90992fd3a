"""BART: an encoder and a decoder that share their word embeddings."""

from operator import itemgetter
from pathlib import Path

import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.interop.family import Family, Keys, Names, PreTrainingClass, Tensor, task_classes
from bert_jax.models import BertConfig

# layout or shorthand, our name, Hugging Face's. Positions count from 2, as in fairseq, so the first
# two rows of both tables are not used. (Unlike RoBERTa's config, BART's does not count these rows.)
_EMBEDDINGS = """
table+2 position_embeddings embed_positions.weight
norm layer_norm layernorm_embedding
"""
_FEED_FORWARD = """
dense intermediate fc1
dense output fc2
norm output_layer_norm final_layer_norm
"""


def _attention(ours: str, theirs: str) -> str:
    return f"""
heads {ours}/query {theirs}.q_proj
heads {ours}/key {theirs}.k_proj
heads {ours}/value {theirs}.v_proj
heads_output {ours}/output {theirs}.out_proj
norm {ours}_layer_norm {theirs}_layer_norm"""


_SELF = _attention("attention", "self_attn")
_CROSS = _attention("cross_attention", "encoder_attn")

# The heads that `transformers` has classes for.
TASKS = ("SequenceClassification", "QuestionAnswering")

# The decoder has the encoder's sizes.
_SAME_SIZES = {
    "decoder_attention_heads": itemgetter("encoder_attention_heads"),
    "decoder_ffn_dim": itemgetter("encoder_ffn_dim"),
}
_LOGITS_BIAS = "final_logits_bias"


def _read_tensors(tensors: dict[str, Tensor], model: BertConfig, file: Path) -> Keys:
    if _LOGITS_BIAS in tensors and tensors.pop(_LOGITS_BIAS).read().any():
        raise UserError(f"{file}: {_LOGITS_BIAS} must be zero in a BART")
    for side in ("encoder", "decoder"):
        tensors.pop(f"model.{side}.version", None)
    return {}


def _write_tensors(model: BertConfig, head: str) -> dict[str, np.ndarray]:
    return {} if head else {_LOGITS_BIAS: np.zeros((1, model.vocab_size), np.float32)}


BART = Family(
    title="BART",
    recipe="bart",
    model_types=("bart",),
    names=(
        Names("bert/embeddings/", "model.", "table word_embeddings shared.weight"),
        Names("bert/embeddings/", "model.encoder.", _EMBEDDINGS),
        Names("bert/decoder/", "model.decoder.", _EMBEDDINGS),
        Names("bert/encoder/layer_{}/", "model.encoder.layers.{}.", _SELF + _FEED_FORWARD),
        Names("bert/decoder/layer_{}/", "model.decoder.layers.{}.", _SELF + _CROSS + _FEED_FORWARD),
    ),
    pretraining_classes=(
        PreTrainingClass(
            "BartForConditionalGeneration", ("denoising",), pipeline="text2text-generation"
        ),
        PreTrainingClass("BartModel"),
    ),
    task_classes=task_classes(
        "Bart",
        TASKS,
        outputs={"SequenceClassification": "classification_head.out_proj"},
        poolers={"SequenceClassification": "classification_head.dense"},
    ),
    tokenizer="BartTokenizer",
    config_keys={
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_decoder_layers": "decoder_layers",
        "num_attention_heads": "encoder_attention_heads",
        "intermediate_size": "encoder_ffn_dim",
        "hidden_act": "activation_function",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "max_position_embeddings": "max_position_embeddings",
        "initializer_range": "init_std",
    },
    fixed={"type_vocab_size": 0, "layer_norm_eps": 1e-5},
    defaults={
        **{"decoder_layers": 12, "attention_dropout": 0.0, "max_position_embeddings": 1024},
        **{"decoder_start_token_id": 2, "eos_token_id": 2},
    },
    # Some are keys of old versions of transformers, which could describe other models with them.
    constants={
        "is_encoder_decoder": True,
        "scale_embedding": False,
        "normalize_before": False,
        "normalize_embedding": True,
        "add_final_layer_norm": False,
        "static_position_embeddings": False,
        "tie_word_embeddings": True,
        "decoder_start_token_id": lambda config: config.get("eos_token_id"),
        **_SAME_SIZES,
    },
    # Programs that read config.json alone choose the kind of model by it.
    written={"is_encoder_decoder": True, **_SAME_SIZES},
    token_ids={
        "bos_token_id": "cls_id",
        "pad_token_id": "pad_id",
        "eos_token_id": "sep_id",
        "decoder_start_token_id": "sep_id",
        "forced_eos_token_id": "sep_id",
    },
    encoder_prefixes=("model.",),
    required_weights=("bert/decoder/position_embeddings",),
    tied={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
    read_tensors=_read_tensors,
    write_tensors=_write_tensors,
)
