"""ELECTRA: a discriminator and a generator, which are two separate models in `transformers`."""

from bert_jax.interop.families.bert import BERT, BERT_KEYS
from bert_jax.interop.family import (
    WITHOUT_POOLER,
    Family,
    Names,
    PreTrainingClass,
    masked_lm_classes,
    task_classes,
)

_DETECTION = """
dense transform dense
output output/dense dense_prediction
"""
_LANGUAGE_MODEL = """
dense transform generator_predictions.dense
norm layer_norm generator_predictions.LayerNorm
vector output_bias generator_lm_head.bias
"""
_ENCODER = tuple(
    table._replace(huggingface=table.huggingface.replace("bert.", "electra."))
    for table in BERT.names
    if table.ours.startswith(("bert/embeddings/", "bert/encoder/"))
)
# The layer of ElectraForMultipleChoice.
_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}

ELECTRA = Family(
    title="ELECTRA",
    recipe="electra",
    model_types=("electra",),
    names=(
        *_ENCODER,
        Names("bert/", "electra.", "dense embeddings_project embeddings_project"),
        Names("rtd/", "discriminator_predictions.", _DETECTION),
        Names("mlm/", "", _LANGUAGE_MODEL),
    ),
    pretraining_classes=(
        PreTrainingClass("ElectraForPreTraining", ("replaced_token",), (*WITHOUT_POOLER, "rtd/")),
        *masked_lm_classes("Electra"),
    ),
    task_classes=task_classes(
        "Electra",
        outputs={"SequenceClassification": "classifier.out_proj"},
        # The encoder has no pooler; some task heads have a dense layer instead.
        poolers={
            "SequenceClassification": "classifier.dense",
            "MultipleChoice": "sequence_summary.summary",
        },
    ),
    tokenizer="ElectraTokenizer",
    config_keys=BERT_KEYS | {"embedding_size": "embedding_size"},
    defaults={"embedding_size": 128},
    # The activation of the generator's head is always gelu, regardless of hidden_act.
    fixed={"hidden_act": "gelu", "pooler_act": "gelu", "pooler_dropout_prob": 0.1},
    constants={**BERT.constants, "is_decoder": False, **_SUMMARY},
    written={**BERT.written, **_SUMMARY, "summary_last_dropout": 0.1},
    encoder_prefixes=("electra.",),
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
)
