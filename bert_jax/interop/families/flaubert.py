"""FlauBERT: the blocks of XLM, post-LN or pre-norm, with a language-model head of one layer."""

from bert_jax.interop.family import (
    SEQUENCES_AND_TOKENS,
    Family,
    Names,
    PreTrainingClass,
    masked_lm_class,
    task_classes,
)

_EMBEDDINGS = """
table word_embeddings embeddings.weight
table position_embeddings position_embeddings.weight
norm layer_norm layer_norm_emb
"""
_LAYER = """
heads attention/query attentions.{}.q_lin
heads attention/key attentions.{}.k_lin
heads attention/value attentions.{}.v_lin
heads_output attention/output attentions.{}.out_lin
norm attention_layer_norm layer_norm1.{}
dense intermediate ffns.{}.lin1
dense output ffns.{}.lin2
norm output_layer_norm layer_norm2.{}
"""
_CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "emb_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_act": "gelu_activation",
    "norm": "pre_norm",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "max_position_embeddings": "max_position_embeddings",
    "initializer_range": "init_std",
    "layer_norm_eps": "layer_norm_eps",
}

_classes = task_classes(
    "Flaubert",
    # FlaubertForMultipleChoice has two output layers.
    (*SEQUENCES_AND_TOKENS, "QuestionAnswering"),
    outputs={"SequenceClassification": "sequence_summary.summary"},
)
# FlaubertForQuestionAnswering predicts the end of an answer from its start.
_classes["QuestionAnswering"] = _classes["QuestionAnswering"]._replace(
    name="FlaubertForQuestionAnsweringSimple"
)

FLAUBERT = Family(
    title="FlauBERT",
    recipe="flaubert",
    model_types=("flaubert",),
    names=(
        Names("bert/embeddings/", "transformer.", _EMBEDDINGS),
        Names("bert/encoder/layer_{}/", "transformer.", _LAYER),
        Names("mlm/", "pred_layer.proj.", "vector output_bias bias"),
    ),
    pretraining_classes=(
        masked_lm_class("FlaubertWithLMHeadModel"),
        PreTrainingClass("FlaubertModel"),
    ),
    task_classes=_classes,
    tokenizer="FlaubertTokenizer",
    config_keys=_CONFIG_KEYS,
    value_names={
        "hidden_act": {"gelu": True, "relu": False},
        "norm": {"post": False, "pre": True},
    },
    fixed={
        "type_vocab_size": 0,
        "head_transform": False,
        "pooler_act": "none",
        "intermediate_size": lambda model: 4 * model["hidden_size"],
    },
    constants={
        "asm": False,
        "causal": False,
        "is_encoder": True,
        "n_langs": 1,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": None,
        "summary_proj_to_labels": True,
    },
    # In transformers, sinusoidal_embeddings affects only initial values.
    written={"sinusoidal_embeddings": False, "summary_first_dropout": 0.1},
    token_ids={
        "bos_token_id": "cls_id",
        "eos_token_id": "sep_id",
        "pad_token_id": "pad_id",
        "bos_index": "cls_id",
        "eos_index": "sep_id",
        "pad_index": "pad_id",
        "unk_index": "unk_id",
        "mask_index": "mask_id",
    },
    encoder_prefixes=("transformer.",),
    tied={"pred_layer.proj.weight": "transformer.embeddings.weight"},
)
