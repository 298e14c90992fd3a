"""The config keys of the model.

The first keys come from BERT's own `bert_config.json`. All defaults are those of BERT-base.
"""

import functools
from collections.abc import Mapping
from typing import Any

from bert_jax.base.errors import UserError
from bert_jax.config.common import ATTENTION_DROPOUT, HIDDEN_DROPOUT
from bert_jax.config.schema import Field, Section

# The sizes of a stored config are not trusted. These limits are far above all published models.
_MOST_ROWS, WIDEST, _DEEPEST = 10_000_000, 2**17, 1000

# A key of the function that the model computes; the others affect only its training.
_shape_field = functools.partial(Field, of_weights=True)

MODEL: Section = {
    "vocab_size": _shape_field(
        30522,
        "Entries of the word embedding. Must equal the size of the vocabulary.",
        above=0,
        at_most=_MOST_ROWS,
    ),
    "hidden_size": _shape_field(768, "Width of the encoder (H).", above=0, at_most=WIDEST),
    "num_hidden_layers": _shape_field(
        12, "Number of Transformer blocks (L).", above=0, at_most=_DEEPEST
    ),
    "num_attention_heads": _shape_field(
        12, "Attention heads in each block (A). Must divide hidden_size.", above=0
    ),
    "intermediate_size": _shape_field(
        3072, "Width of the feed-forward layer, 4H in the paper.", above=0, at_most=WIDEST
    ),
    "hidden_act": _shape_field(
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
    "max_position_embeddings": _shape_field(
        512,
        "Rows of the learned position table. No stage may have longer sequences.",
        above=0,
        at_most=_MOST_ROWS,
    ),
    "type_vocab_size": _shape_field(
        2,
        "Rows of the segment (token type) table. Pairs of sentences need two. 0 means no table.",
        at_least=0,
        at_most=_MOST_ROWS,
    ),
    "initializer_range": Field(
        0.02,
        "Standard deviation of the initial weights, which are normal and truncated at two "
        "standard deviations.",
        above=0,
    ),
    "layer_norm_eps": _shape_field(1e-12, "Epsilon of LayerNorm.", above=0),
    "causal": _shape_field(
        False, "Whether each position attends only to itself and to the positions before it."
    ),
    "embedding_size": _shape_field(
        0,
        "Width of the embedding tables and of the decoder tied to them (E). A layer projects the "
        "embeddings to hidden_size (ALBERT, ELECTRA). 0 means hidden_size, without that layer.",
        at_least=0,
        at_most=WIDEST,
    ),
    "layer_groups": _shape_field(
        0,
        "Number of groups (G) of consecutive blocks; the blocks of a group share their parameters. "
        "ALBERT has one group. 0 means that every block has its own parameters.",
        at_least=0,
    ),
    "attention_output_dropout_prob": Field(
        -1.0,
        "Dropout probability after the attention sublayer of each block. -1 means "
        "hidden_dropout_prob; DistilBERT has 0.",
        at_least=0,
        below=1,
        or_equal=-1,
    ),
    "generator_size": Field(
        0.0,
        "Width of ELECTRA's generator as a share of hidden_size. The generator has a head for "
        "every 64 units, a feed-forward layer of four times its width, and all num_hidden_layers. "
        "0 for a model without a generator.",
        at_least=0,
        at_most=1,
    ),
    "pooler_act": _shape_field(
        "tanh",
        "Activation of the pooler: tanh, or gelu or relu for the classifiers of ELECTRA and "
        "DistilBERT.",
        choices=("tanh", "gelu", "relu"),
    ),
}


def check_model(model: Mapping[str, Any], source: str = "") -> None:
    """Refuses values of MODEL that contradict each other.

    Args:
      model: The keys of MODEL, with values in range.
      source: What comes before the key in messages: "FILE: ".

    Raises:
      UserError: The message names the keys.
    """
    if model["hidden_size"] % model["num_attention_heads"]:
        raise UserError(
            f"{source}config.model.num_attention_heads is {model['num_attention_heads']}, which "
            f"does not divide config.model.hidden_size, {model['hidden_size']}"
        )
    if model["layer_groups"] > model["num_hidden_layers"]:
        raise UserError(
            f"{source}config.model.layer_groups is {model['layer_groups']}, more than "
            f"config.model.num_hidden_layers, {model['num_hidden_layers']}"
        )
