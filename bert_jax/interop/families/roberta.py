"""RoBERTa, XLM-RoBERTa and CamemBERT: three names in `transformers` for one model.

PhoBERT is a RoBERTa with another tokenizer.
"""

import dataclasses
from typing import Any

from bert_jax.interop.families.bert import BERT
from bert_jax.interop.family import Family, Names, masked_lm_classes, task_classes

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
    "outputs": {"sequence_classification": "classifier.out_proj"},
    "poolers": {"sequence_classification": "classifier.dense"},
}


def _classes(prefix: str) -> dict[str, Any]:
    """Makes the attributes of a `Family` whose class names start with `prefix`."""
    return {
        "pretraining_classes": masked_lm_classes(prefix),
        "task_classes": task_classes(prefix, **TWO_LAYERS),
    }


ROBERTA = Family(
    title="RoBERTa",
    recipe="roberta",
    model_types=("roberta",),
    names=(*_ENCODER, MASKED_LM),
    **_classes("Roberta"),
    tokenizer="RobertaTokenizer",
    config_keys=BERT.config_keys,
    config_offsets={"max_position_embeddings": _POSITION_OFFSET},
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
    # The authors' model has no token types.
    zero_tables={"type_vocab_size": "roberta.embeddings.token_type_embeddings.weight"},
)
_ADAPTERS = (
    "is of Jina embeddings v3 as Jina's own code stores it; bert_jax reads the same model without "
    "its adapters, as transformers stores it: jinaai/jina-embeddings-v3-hf"
)
XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    title="XLM-RoBERTa",
    model_types=("xlm-roberta",),
    tokenizer="XLMRobertaTokenizer",
    refused={"lora_adaptations": _ADAPTERS},
    **_classes("XLMRoberta"),
)
CAMEMBERT = dataclasses.replace(
    ROBERTA,
    title="CamemBERT",
    model_types=("camembert",),
    tokenizer="CamembertTokenizer",
    **_classes("Camembert"),
)
