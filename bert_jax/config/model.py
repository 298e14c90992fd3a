"""The config keys of the model.

The first keys come from BERT's own `bert_config.json`. All defaults are those of BERT-base.
"""

from bert_jax.config.common import ATTENTION_DROPOUT, HIDDEN_DROPOUT
from bert_jax.config.schema import Field, Section

MODEL: Section = {
    "vocab_size": Field(
        30522, "Entries of the word embedding. Must equal the size of the vocabulary.", above=0
    ),
    "hidden_size": Field(768, "Width of the encoder (H).", above=0),
    "num_hidden_layers": Field(12, "Number of Transformer blocks (L).", above=0),
    "num_attention_heads": Field(
        12, "Attention heads in each block (A). Must divide hidden_size.", above=0
    ),
    "intermediate_size": Field(3072, "Width of the feed-forward layer, 4H in the paper.", above=0),
    "hidden_act": Field(
        "gelu",
        "Activation of the feed-forward layer. gelu is the exact form, with erf; gelu_new is the "
        "approximation with tanh.",
        choices=("gelu", "gelu_new", "relu"),
    ),
    "hidden_dropout_prob": HIDDEN_DROPOUT,
    "attention_probs_dropout_prob": ATTENTION_DROPOUT,
    "pooler_dropout_prob": Field(
        0.0,
        "Dropout probability before the pooler's dense layer. BERT has 0; RoBERTa's classifier has "
        "0.1.",
        at_least=0,
        below=1,
    ),
    "max_position_embeddings": Field(
        512, "Rows of the learned position table. No stage may have longer sequences.", above=0
    ),
    "type_vocab_size": Field(
        2,
        "Rows of the segment (token type) table. Pairs of sentences need two. 0 means no table.",
        at_least=0,
    ),
    "initializer_range": Field(
        0.02,
        "Standard deviation of the initial weights, which are normal and truncated at two "
        "standard deviations.",
        above=0,
    ),
    "layer_norm_eps": Field(1e-12, "Epsilon of LayerNorm.", above=0),
    "causal": Field(
        False, "Whether each position attends only to itself and to the positions before it."
    ),
    "embedding_size": Field(
        0,
        "Width of the embedding tables and of the decoder tied to them (E). A layer projects the "
        "embeddings to hidden_size (ALBERT, ELECTRA). 0 means hidden_size, without that layer.",
        at_least=0,
    ),
    "layer_groups": Field(
        0,
        "Number of groups (G) of consecutive blocks; the blocks of a group share their parameters. "
        "ALBERT has one group. 0 means that every block has its own parameters.",
        at_least=0,
    ),
    "attention_output_dropout_prob": Field(
        -1.0,
        "Dropout probability after the attention sublayer of each block. -1 means "
        "hidden_dropout_prob; DistilBERT has 0.",
        at_least=-1,
        below=1,
    ),
    "generator_size": Field(
        0.0,
        "Width of ELECTRA's generator as a share of hidden_size. The generator has a head for "
        "every 64 units, a feed-forward layer of four times its width, and all num_hidden_layers. "
        "0 for a model without a generator.",
        at_least=0,
        at_most=1,
    ),
    "pooler_act": Field(
        "tanh",
        "Activation of the pooler: tanh, or gelu or relu for the classifiers of ELECTRA and "
        "DistilBERT.",
        choices=("tanh", "gelu", "relu"),
    ),
}
