"""BERT: google-research/bert, and the Bert classes of `transformers`; SpanBERT uses them too."""

import dataclasses

from bert_jax.interop.family import (
    WITHOUT_POOLER,
    Family,
    Keys,
    Names,
    PreTrainingClass,
    masked_lm_class,
    same_keys,
    task_classes,
)
from bert_jax.models import BertConfig

# layout or shorthand, our name, Hugging Face's, Google's
_EMBEDDINGS = """
table word_embeddings word_embeddings.weight word_embeddings
table position_embeddings position_embeddings.weight position_embeddings
table token_type_embeddings token_type_embeddings.weight token_type_embeddings
norm layer_norm LayerNorm LayerNorm
"""
_LAYER = """
heads attention/query attention.self.query attention/self/query
heads attention/key attention.self.key attention/self/key
heads attention/value attention.self.value attention/self/value
heads_output attention/output attention.output.dense attention/output/dense
norm attention_layer_norm attention.output.LayerNorm attention/output/LayerNorm
dense intermediate intermediate.dense intermediate/dense
dense output output.dense output/dense
norm output_layer_norm output.LayerNorm output/LayerNorm
"""
_LANGUAGE_MODEL = """
dense transform transform.dense transform/dense
norm layer_norm transform.LayerNorm transform/LayerNorm
vector output_bias bias output_bias
"""
BERT_KEYS = same_keys("""
vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act
hidden_dropout_prob attention_probs_dropout_prob max_position_embeddings type_vocab_size
initializer_range layer_norm_eps
""")


def _write_config(config: Keys, model: BertConfig) -> Keys:
    if not model.causal:
        del config["is_decoder"]
    return config


BERT = Family(
    title="BERT",
    recipe="base",
    model_types=("bert",),
    names=(
        Names("bert/embeddings/", "bert.embeddings.", _EMBEDDINGS, "bert/embeddings/"),
        Names("bert/encoder/layer_{}/", "bert.encoder.layer.{}.", _LAYER, "bert/encoder/layer_{}/"),
        Names("bert/", "bert.", "dense pooler/dense pooler.dense pooler/dense", "bert/"),
        Names("mlm/", "cls.predictions.", _LANGUAGE_MODEL, "cls/predictions/"),
        Names("nsp/", "cls.", "output dense seq_relationship seq_relationship/output", "cls/"),
    ),
    pretraining_classes=(
        PreTrainingClass(
            "BertForPreTraining",
            terms=("masked_lm", "next_sentence"),
            weights=("bert/", "mlm/", "nsp/"),
            pipeline="fill-mask",
        ),
        masked_lm_class("BertForMaskedLM"),
        PreTrainingClass(
            "BertLMHeadModel",
            terms=("next_token",),
            weights=(*WITHOUT_POOLER, "mlm/"),
            causal=True,
            pipeline="text-generation",
        ),
        PreTrainingClass("BertModel"),
        PreTrainingClass("BertModel", causal=True),
    ),
    task_classes=task_classes("Bert"),
    config_keys=BERT_KEYS | {"causal": "is_decoder"},
    constants={"position_embedding_type": "absolute", "add_cross_attention": False},
    written={"use_cache": True},
    encoder_prefixes=("bert.", "bert/"),
    # Checkpoints translated from TensorFlow in the first year of transformers.
    renamed={r"LayerNorm\.gamma": "LayerNorm.weight", r"LayerNorm\.beta": "LayerNorm.bias"},
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    write_config=_write_config,
)
# transformers has no class for the boundary head, so an export leaves it out.
SPANBERT = dataclasses.replace(
    BERT,
    title="SpanBERT",
    recipe="spanbert",
    # SpanBERT is trained without next-sentence prediction.
    pretraining_classes=[c for c in BERT.pretraining_classes if "next_sentence" not in c.terms],
)
# As in the released models, an export has the pooler and the head of the three-way order beside the
# weights of its class, which ignores them.
HERBERT = dataclasses.replace(
    BERT,
    title="HerBERT",
    recipe="herbert",
    tokenizer="HerbertTokenizer",
    names=(
        *(names for names in BERT.names if names.ours != "nsp/"),
        Names("sso/", "cls.sso.", "output dense sso_relationship"),
    ),
    pretraining_classes=(
        PreTrainingClass(
            "BertForMaskedLM",
            terms=("masked_lm", "three_way_order"),
            weights=("bert/", "mlm/", "sso/"),
            pipeline="fill-mask",
        ),
        *SPANBERT.pretraining_classes,
    ),
)
