"""DistilBERT: a BERT without token types or a pooler, under other names."""

from bert_jax.interop.family import Family, Names, PreTrainingClass, task_classes

# layout, our name, Hugging Face's
_EMBEDDINGS = """
table word_embeddings word_embeddings.weight
table position_embeddings position_embeddings.weight
vector layer_norm/scale LayerNorm.weight
vector layer_norm/bias LayerNorm.bias
"""
_LAYER = """
heads_in attention/query_kernel attention.q_lin.weight
heads_bias attention/query_bias attention.q_lin.bias
heads_in attention/key_kernel attention.k_lin.weight
heads_bias attention/key_bias attention.k_lin.bias
heads_in attention/value_kernel attention.v_lin.weight
heads_bias attention/value_bias attention.v_lin.bias
heads_out attention/output_kernel attention.out_lin.weight
vector attention/output_bias attention.out_lin.bias
vector attention_layer_norm/scale sa_layer_norm.weight
vector attention_layer_norm/bias sa_layer_norm.bias
matrix intermediate/kernel ffn.lin1.weight
vector intermediate/bias ffn.lin1.bias
matrix output/kernel ffn.lin2.weight
vector output/bias ffn.lin2.bias
vector output_layer_norm/scale output_layer_norm.weight
vector output_layer_norm/bias output_layer_norm.bias
"""
_LANGUAGE_MODEL = """
matrix transform/kernel vocab_transform.weight
vector transform/bias vocab_transform.bias
vector layer_norm/scale vocab_layer_norm.weight
vector layer_norm/bias vocab_layer_norm.bias
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
    pretraining_classes=(
        PreTrainingClass(
            "DistilBertForMaskedLM",
            terms=("masked_lm",),
            weights=("bert/embeddings/", "bert/encoder/", "mlm/"),
            pipeline="fill-mask",
        ),
        PreTrainingClass("DistilBertModel", terms=(), weights=("bert/",)),
    ),
    # `pre_classifier` is the dense layer of our pooler, with another activation.
    task_classes=task_classes(
        "DistilBert",
        poolers=dict.fromkeys(("sequence_classification", "multiple_choice"), "pre_classifier."),
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
        "torch_dtype": "float32",
    },
    encoder_prefixes=("distilbert.",),
    base_prefixes=("embeddings.", "transformer."),
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
