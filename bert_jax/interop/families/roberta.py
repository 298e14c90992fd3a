"""RoBERTa, XLM-RoBERTa and CamemBERT: three names in `transformers` for one model.

PhoBERT is a RoBERTa with another tokenizer.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.config.common import MODEL
from bert_jax.interop.families.bert import BERT, BERT_KEYS
from bert_jax.interop.family import Family, Keys, Names, Tensor, masked_lm_classes, task_classes
from bert_jax.models import BertConfig

# Positions count from pad_token_id + 1, so the first two rows of the table are not used.
_POSITION_OFFSET = 2

_LANGUAGE_MODEL = """
dense transform dense
norm layer_norm layer_norm
vector output_bias bias
"""
MASKED_LM = Names("mlm/", "lm_head.", _LANGUAGE_MODEL)
_ENCODER = tuple(
    table._replace(
        huggingface=table.huggingface.replace("bert.", "roberta."),
        rows=table.rows.replace("table position", f"table+{_POSITION_OFFSET} position"),
    )
    for table in BERT.names
    if table.ours.startswith("bert/")
)


# The class for sequences has the pooler's dense layer, which its encoder lacks.
TWO_LAYERS = {
    "outputs": {"SequenceClassification": "classifier.out_proj"},
    "poolers": {"SequenceClassification": "classifier.dense"},
}


def _classes(prefix: str) -> dict[str, Any]:
    """Makes the attributes of a `Family` whose class names start with `prefix`."""
    return {
        "pretraining_classes": masked_lm_classes(prefix),
        "task_classes": task_classes(prefix, **TWO_LAYERS),
    }


def _read_config(config: Keys, path: Path) -> Keys:
    positions = config.get("max_position_embeddings", 512)
    MODEL["max_position_embeddings"].check(f"{path}: max_position_embeddings", positions)
    return config | {"max_position_embeddings": positions - _POSITION_OFFSET}


def _write_config(config: Keys, model: BertConfig) -> Keys:
    config["max_position_embeddings"] += _POSITION_OFFSET
    return config | {"type_vocab_size": model.type_vocab_size or 1}


# The authors' model has no token types. In files, a table with one row of zeros stands for none.
_TOKEN_TYPES = "roberta.embeddings.token_type_embeddings.weight"


def _read_tensors(tensors: dict[str, Tensor], model: BertConfig, file: Path) -> Keys:
    table = tensors.get(_TOKEN_TYPES)
    if table is None or model.type_vocab_size != 1 or table.read().any():
        return {}
    del tensors[_TOKEN_TYPES]
    return {"type_vocab_size": 0}


def _write_tensors(model: BertConfig, head: str) -> dict[str, np.ndarray]:
    if model.type_vocab_size:
        return {}
    return {_TOKEN_TYPES: np.zeros((1, model.embedding_width), np.float32)}


ROBERTA = Family(
    title="RoBERTa",
    recipe="roberta",
    model_types=("roberta",),
    names=(*_ENCODER, MASKED_LM),
    **_classes("Roberta"),
    tokenizer="RobertaTokenizer",
    config_keys=BERT_KEYS,
    # The activation of the masked-LM head is always gelu, regardless of hidden_act.
    fixed={"hidden_act": "gelu", "pooler_dropout_prob": 0.1},
    constants={**BERT.constants, "is_decoder": False, "pad_token_id": _POSITION_OFFSET - 1},
    written=BERT.written,
    token_ids={"bos_token_id": "cls_id", "pad_token_id": "pad_id", "eos_token_id": "sep_id"},
    encoder_prefixes=("roberta.",),
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    read_config=_read_config,
    write_config=_write_config,
    read_tensors=_read_tensors,
    write_tensors=_write_tensors,
)


def _read_xlm_config(config: Keys, path: Path) -> Keys:
    if config.get("lora_adaptations"):
        raise UserError(
            f"{path}: lora_adaptations is of Jina embeddings v3 as Jina's own code stores it; "
            "bert_jax reads the same model without its adapters, as transformers stores it: "
            "jinaai/jina-embeddings-v3-hf"
        )
    return _read_config(config, path)


XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    title="XLM-RoBERTa",
    model_types=("xlm-roberta",),
    tokenizer="XLMRobertaTokenizer",
    read_config=_read_xlm_config,
    **_classes("XLMRoberta"),
)
CAMEMBERT = dataclasses.replace(
    ROBERTA,
    title="CamemBERT",
    model_types=("camembert",),
    tokenizer="CamembertTokenizer",
    **_classes("Camembert"),
)
