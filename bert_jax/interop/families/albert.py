"""ALBERT: a BERT with narrow embeddings and shared layers, under other names."""

from bert_jax.interop.families.bert import BERT
from bert_jax.interop.family import DENSE, OUTPUT, Family, Names, PreTrainingClass, task_classes

# layout, our name, Hugging Face's
_LAYER = """
heads_in attention/query_kernel attention.query.weight
heads_bias attention/query_bias attention.query.bias
heads_in attention/key_kernel attention.key.weight
heads_bias attention/key_bias attention.key.bias
heads_in attention/value_kernel attention.value.weight
heads_bias attention/value_bias attention.value.bias
heads_out attention/output_kernel attention.dense.weight
vector attention/output_bias attention.dense.bias
vector attention_layer_norm/scale attention.LayerNorm.weight
vector attention_layer_norm/bias attention.LayerNorm.bias
matrix intermediate/kernel ffn.weight
vector intermediate/bias ffn.bias
matrix output/kernel ffn_output.weight
vector output/bias ffn_output.bias
vector output_layer_norm/scale full_layer_layer_norm.weight
vector output_layer_norm/bias full_layer_layer_norm.bias
"""
_LANGUAGE_MODEL = """
matrix transform/kernel dense.weight
vector transform/bias dense.bias
vector layer_norm/scale LayerNorm.weight
vector layer_norm/bias LayerNorm.bias
vector output_bias bias
"""
_BODY = ("bert/embeddings/", "bert/embeddings_project/", "bert/encoder/")

ALBERT = Family(
    title="ALBERT",
    recipe="albert",
    model_types=("albert",),
    names=(
        BERT.names[0]._replace(huggingface="albert.embeddings."),
        Names("bert/embeddings_project/", "albert.encoder.embedding_hidden_mapping_in.", DENSE),
        Names(
            "bert/encoder/layer_{}/",
            "albert.encoder.albert_layer_groups.{}.albert_layers.0.",
            _LAYER,
        ),
        Names("bert/pooler/dense/", "albert.pooler.", DENSE),
        Names("mlm/", "predictions.", _LANGUAGE_MODEL),
        Names("sop/", "sop_classifier.classifier.", OUTPUT),
    ),
    pretraining_classes=(
        PreTrainingClass(
            "AlbertForPreTraining",
            terms=("masked_lm", "sentence_order"),
            weights=("bert/", "mlm/", "sop/"),
            pipeline="fill-mask",
        ),
        PreTrainingClass(
            "AlbertForMaskedLM",
            terms=("masked_lm",),
            weights=(*_BODY, "mlm/"),
            pipeline="fill-mask",
        ),
        PreTrainingClass("AlbertModel", terms=(), weights=("bert/",)),
    ),
    task_classes=task_classes("Albert"),
    tokenizer="AlbertTokenizer",
    config_keys=BERT.config_keys
    | {"embedding_size": "embedding_size", "layer_groups": "num_hidden_groups"},
    defaults={
        "embedding_size": 128,
        "num_hidden_groups": 1,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    constants={"position_embedding_type": "absolute", "inner_group_num": 1},
    # transformers also applies classifier_dropout_prob before the sentence-order head, where the
    # authors' program has no dropout.
    written={
        "inner_group_num": 1,
        "classifier_dropout_prob": 0.1,
        "torch_dtype": "float32",
    },
    token_ids={"bos_token_id": "cls_id", "pad_token_id": "pad_id", "eos_token_id": "sep_id"},
    encoder_prefixes=("albert.",),
    base_prefixes=BERT.base_prefixes,
    required_weights=("bert/embeddings_project/kernel",),
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    buffers=("albert.embeddings.position_ids",),
)
