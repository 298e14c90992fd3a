"""The encoder of Jina embeddings v3: XLM-RoBERTa with rotary positions, without its adapters.

`transformers` 5 writes the names of Jina's own code, but has others in memory, which
`save_original_format=False` writes.
"""

import dataclasses
from functools import partial

from bert_jax.interop.families import rotary
from bert_jax.interop.families.bert import BERT_KEYS
from bert_jax.interop.families.roberta import MASKED_LM, ROBERTA, TWO_LAYERS
from bert_jax.interop.family import (
    SEQUENCES_AND_TOKENS,
    Keys,
    Names,
    masked_lm_classes,
    task_classes,
)
from bert_jax.models import BertConfig

_EMBEDDINGS = "roberta.embeddings."
_LAYER = """
heads@0/3 attention/query mixer.Wqkv
heads@1/3 attention/key mixer.Wqkv
heads@2/3 attention/value mixer.Wqkv
heads_output attention/output mixer.out_proj
norm attention_layer_norm norm1
dense intermediate mlp.fc1
dense output mlp.fc2
norm output_layer_norm norm2
"""
_NATIVE_LAYER = f"""{rotary.POST_NORM}
dense intermediate mlp.fc1
dense output mlp.fc2
"""


def _write_config(config: Keys, model: BertConfig) -> Keys:
    types = {"type_vocab_size": model.type_vocab_size or 1}
    return rotary.write_config(config, model) | types


# The recipe is that of XLM-R's model and objective.
JINA_V3 = dataclasses.replace(
    ROBERTA,
    title="Jina v3",
    model_types=("jina_embeddings_v3",),
    names=(
        Names("bert/embeddings/", _EMBEDDINGS, rotary.TABLES),
        Names("bert/embeddings/", "roberta.", "norm layer_norm emb_ln"),
        Names("bert/encoder/layer_{}/", "roberta.encoder.layers.{}.", _LAYER),
        Names("bert/", "roberta.", "dense pooler/dense pooler.dense"),
        MASKED_LM,
    ),
    other_names=(
        Names("bert/embeddings/", _EMBEDDINGS, "norm layer_norm LayerNorm"),
        Names("bert/encoder/layer_{}/", "roberta.layers.{}.", _NATIVE_LAYER),
    ),
    pretraining_classes=masked_lm_classes("JinaEmbeddingsV3"),
    task_classes=task_classes(
        "JinaEmbeddingsV3", (*SEQUENCES_AND_TOKENS, "QuestionAnswering"), **TWO_LAYERS
    ),
    tokenizer="XLMRobertaTokenizer",
    config_keys={**BERT_KEYS, **rotary.ROTARY_KEYS},
    defaults={"layer_norm_eps": 1e-5, "max_position_embeddings": 8194, "type_vocab_size": 1},
    constants={"tie_word_embeddings": True},
    written={"tie_word_embeddings": True},
    read_config=partial(rotary.read_config, theta=20_000.0),
    write_config=_write_config,
)
