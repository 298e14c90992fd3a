"""DistilBERT: a BERT without token types or a pooler, under other names."""

from bert_jax.interop.family import Family, Names, masked_lm_classes, task_classes

_EMBEDDINGS = """
table word_embeddings word_embeddings.weight
table position_embeddings position_embeddings.weight
norm layer_norm LayerNorm
"""
_LAYER = """
heads attention/query attention.q_lin
heads attention/key attention.k_lin
heads attention/value attention.v_lin
heads_output attention/output attention.out_lin
norm attention_layer_norm sa_layer_norm
dense intermediate ffn.lin1
dense output ffn.lin2
norm output_layer_norm output_layer_norm
"""
_LANGUAGE_MODEL = """
dense transform vocab_transform
norm layer_norm vocab_layer_norm
vector output_bias vocab_projector.bias
"""
_CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "max_position_embeddings": "max_position_embeddings",
    "initializer_range": "initializer_range",
}

DISTILBERT = Family(
    title="DistilBERT",
    recipe="distilbert",
    model_types=("distilbert",),
    names=(
        Names("bert/embeddings/", "distilbert.embeddings.", _EMBEDDINGS),
        Names("bert/encoder/layer_{}/", "distilbert.transformer.layer.{}.", _LAYER),
        Names("mlm/", "", _LANGUAGE_MODEL),
    ),
    pretraining_classes=masked_lm_classes("DistilBert"),
    # `pre_classifier` is the dense layer of our pooler, with another activation.
    task_classes=task_classes(
        "DistilBert",
        poolers=dict.fromkeys(("SequenceClassification", "MultipleChoice"), "pre_classifier"),
    ),
    tokenizer="DistilBertTokenizer",
    config_keys=_CONFIG_KEYS,
    fixed={
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-12,
        "attention_output_dropout_prob": 0.0,
        "pooler_act": "relu",
    },
    # DistilBERT's sinusoids are only the initial values of the position table.
    written={
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "qa_dropout": 0.0,
        "seq_classif_dropout": 0.1,
    },
    encoder_prefixes=("distilbert.",),
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
