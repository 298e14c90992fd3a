"""ELECTRA: a discriminator and a generator, each a model of its own in `transformers`."""

from bert_jax.interop.families.bert import BERT
from bert_jax.interop.family import Family, Names, PreTrainingClass, TaskClass

# layout, our name, Hugging Face's, Google's
_DENSE = """
matrix kernel weight -
vector bias bias -
"""
_DETECTION = """
matrix transform/kernel dense.weight -
vector transform/bias dense.bias -
classes output/dense/kernel dense_prediction.weight -
vector output/dense/bias dense_prediction.bias -
"""
_LANGUAGE_MODEL = """
matrix transform/kernel generator_predictions.dense.weight -
vector transform/bias generator_predictions.dense.bias -
vector layer_norm/scale generator_predictions.LayerNorm.weight -
vector layer_norm/bias generator_predictions.LayerNorm.bias -
vector output_bias generator_lm_head.bias -
"""
_OUTPUT = """
classes dense/kernel weight -
vector dense/bias bias -
"""
_ENCODER = tuple(
    table._replace(huggingface=table.huggingface.replace("bert.", "electra."))
    for table in BERT.names
    if table.ours.startswith(("bert/embeddings/", "bert/encoder/"))
)
# The encoder has no pooler; some task heads have a dense layer in its place.
_BODY = ("bert/embeddings/", "bert/embeddings_project/", "bert/encoder/")
_CLASSIFIER = Names("classifier/", "classifier.", "-", _OUTPUT)
_POOLER = Names("bert/pooler/dense/", "classifier.dense.", "-", _DENSE)

ELECTRA = Family(
    title="ELECTRA",
    model_types=("electra",),
    names=(
        *_ENCODER,
        Names("bert/embeddings_project/", "electra.embeddings_project.", "-", _DENSE),
        Names("rtd/", "discriminator_predictions.", "-", _DETECTION),
        Names("mlm/", "", "-", _LANGUAGE_MODEL),
    ),
    pretraining_classes=(
        PreTrainingClass(
            "ElectraForPreTraining", terms=("replaced_token",), weights=(*_BODY, "rtd/")
        ),
        PreTrainingClass(
            "ElectraForMaskedLM",
            terms=("masked_lm",),
            weights=(*_BODY, "mlm/"),
            pipeline="fill-mask",
        ),
        PreTrainingClass("ElectraModel", terms=(), weights=_BODY),
    ),
    task_classes={
        "sequence_classification": TaskClass(
            "ElectraForSequenceClassification",
            _CLASSIFIER._replace(huggingface="classifier.out_proj."),
            "text-classification",
            pooler=_POOLER,
        ),
        "token_classification": TaskClass(
            "ElectraForTokenClassification", _CLASSIFIER, "token-classification"
        ),
        "question_answering": TaskClass(
            "ElectraForQuestionAnswering",
            _CLASSIFIER._replace(huggingface="qa_outputs."),
            "question-answering",
        ),
        "multiple_choice": TaskClass(
            "ElectraForMultipleChoice",
            _CLASSIFIER,
            "multiple-choice",
            pooler=_POOLER._replace(huggingface="sequence_summary.summary."),
        ),
    },
    tokenizer="ElectraTokenizer",
    config_keys=BERT.config_keys | {"embedding_size": "embedding_size"},
    # The activation of the generator's head is gelu, whatever hidden_act says.
    fixed={"hidden_act": "gelu", "pooler_act": "gelu", "pooler_dropout_prob": 0.1},
    constants={**BERT.constants, "is_decoder": False},
    written=BERT.written
    | {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
    activations=BERT.activations,
    encoder_prefixes=("electra.",),
    base_prefixes=("embeddings.", "embeddings_project.", "encoder."),
    renamed=BERT.renamed,
    tied={
        "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",
    },
    buffers=("electra.embeddings.position_ids",),
)
