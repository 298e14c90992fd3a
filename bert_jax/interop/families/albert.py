"""ALBERT: a BERT with narrow embeddings and shared layers, under other names."""

from pathlib import Path

from bert_jax.base.errors import UserError
from bert_jax.interop.families.bert import BERT, BERT_KEYS
from bert_jax.interop.family import (
    Family,
    Keys,
    Names,
    PreTrainingClass,
    masked_lm_classes,
    task_classes,
)

_EMBEDDING_SIZE = 128
_LAYER = """
heads attention/query attention.query
heads attention/key attention.key
heads attention/value attention.value
heads_output attention/output attention.dense
norm attention_layer_norm attention.LayerNorm
dense intermediate ffn
dense output ffn_output
norm output_layer_norm full_layer_layer_norm
"""
_LANGUAGE_MODEL = """
dense transform dense
norm layer_norm LayerNorm
vector output_bias bias
"""


def _read_config(config: Keys, path: Path) -> Keys:
    # transformers projects embeddings of any width; bert_jax, only those of another width.
    width = config.get("embedding_size", _EMBEDDING_SIZE)
    if width == config.get("hidden_size"):
        raise UserError(
            f"{path}: embedding_size is {width!r}; it must differ from hidden_size, because "
            "bert_jax has no projection between equal widths"
        )
    return config


ALBERT = Family(
    title="ALBERT",
    recipe="albert",
    model_types=("albert",),
    names=(
        BERT.names[0]._replace(huggingface="albert.embeddings."),
        Names("bert/", "albert.encoder.", "dense embeddings_project embedding_hidden_mapping_in"),
        Names(
            "bert/encoder/layer_{}/",
            "albert.encoder.albert_layer_groups.{}.albert_layers.0.",
            _LAYER,
        ),
        Names("bert/", "albert.", "dense pooler/dense pooler"),
        Names("mlm/", "predictions.", _LANGUAGE_MODEL),
        Names("sop/", "sop_classifier.", "output dense classifier"),
    ),
    pretraining_classes=(
        PreTrainingClass(
            "AlbertForPreTraining",
            terms=("masked_lm", "sentence_order"),
            weights=("bert/", "mlm/", "sop/"),
            pipeline="fill-mask",
        ),
        *masked_lm_classes("Albert"),
    ),
    task_classes=task_classes("Albert"),
    tokenizer="AlbertTokenizer",
    config_keys=BERT_KEYS
    | {"embedding_size": "embedding_size", "layer_groups": "num_hidden_groups"},
    defaults={
        "embedding_size": _EMBEDDING_SIZE,
        "num_hidden_groups": 1,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    constants={"position_embedding_type": "absolute", "inner_group_num": 1},
    # transformers also applies classifier_dropout_prob before the sentence-order head, where the
    # authors' program has no dropout.
    written={"inner_group_num": 1, "classifier_dropout_prob": 0.1},
    token_ids={"bos_token_id": "cls_id", "pad_token_id": "pad_id", "eos_token_id": "sep_id"},
    encoder_prefixes=("albert.",),
    required_weights=("bert/embeddings_project/kernel",),
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    read_config=_read_config,
)
