"""A model's parameters as flat weights, the form that all conversions go through.

The *flat* form is a dict from the path of each parameter, joined by "/", to a numpy
array: `bert/encoder/layer_0/attention/query_kernel`. In the model, scanned layers are one
stacked tensor; in the flat form every layer stands alone. The model pads its vocabulary;
the flat form has the rows of the vocabulary alone.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax import traverse_util

from bert_jax.models import BertConfig, PreTrainingModel
from bert_jax.objectives.terms import BERT_TERMS, make_terms
from bert_jax.training.state import init_params

ENCODER = "bert/"
POOLER = "bert/pooler"
_LAYERS = "bert/encoder/layer_"
_STACKED = "bert/encoder/layers/layer/"
_WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"

Weights = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


def head_of(name: str) -> str:
    """Returns the head that a flat weight belongs to; empty for the encoder's own weights."""
    if name.startswith(f"{POOLER}/"):
        return POOLER
    return "" if name.startswith(ENCODER) else name.partition("/")[0]


def head_labels(config: BertConfig, terms: Sequence[str]) -> dict[str, str]:
    """Returns the heads of a model with these terms, and what messages call them."""
    labels = {}
    for term in make_terms(terms):
        if term.needs_pooler:
            labels[POOLER] = "pooler"
        label = f"{term.label.replace(' ', '-')} head"
        labels |= dict.fromkeys(term.heads(config), label)
    return labels


def flatten(params: Any, config: BertConfig) -> Weights:
    """Turns the model's parameters into flat weights, all of them views."""
    flat = {}
    for name, value in traverse_util.flatten_dict(params, sep="/").items():
        if name.startswith(_STACKED):
            for i in range(config.num_hidden_layers):
                flat[f"{_LAYERS}{i}/{name.removeprefix(_STACKED)}"] = value[i]
        else:
            flat[name] = value
    cut_vocabulary(flat, config.vocab_size)
    return flat


def unflatten(weights: Mapping[str, np.ndarray], config: BertConfig) -> Any:
    """Inverts `flatten` for a model with this config; layers are stacked if it scans them.

    A head that the weights lack is absent from the result too.
    """
    flat = dict(weights)
    for name in filter(_has_vocabulary, flat):
        padding = [(0, config.padded_vocab_size - config.vocab_size)]
        flat[name] = np.pad(flat[name], padding + [(0, 0)] * (flat[name].ndim - 1))
    if config.scan_layers:
        first = f"{_LAYERS}0/"
        for rest in [name.removeprefix(first) for name in weights if name.startswith(first)]:
            layers = range(config.num_hidden_layers)
            flat[_STACKED + rest] = np.stack([flat.pop(f"{_LAYERS}{i}/{rest}") for i in layers])
    return traverse_util.unflatten_dict(flat, sep="/")


def expected_shapes(config: BertConfig, terms: Sequence[str] = BERT_TERMS) -> Shapes:
    """Returns the name and shape of every flat weight of a pre-training model."""
    return model_shapes(PreTrainingModel(_unscanned(config), make_terms(terms)))


def model_shapes(model: nn.Module) -> Shapes:
    """Returns the name and shape of every flat weight of a model."""

    def fresh() -> dict[str, jax.Array]:
        return flatten(nn.unbox(init_params(model, 0)), model.config)

    return {name: leaf.shape for name, leaf in jax.eval_shape(fresh).items()}


def output_shapes(hidden_size: int, num_outputs: int) -> Shapes:
    """Returns the flat weights of a fine-tuned model's output layer, which reads one state."""
    return {
        "classifier/dense/kernel": (hidden_size, num_outputs),
        "classifier/dense/bias": (num_outputs,),
    }


def initial_weights(model: nn.Module, seed: int, wanted: Callable[[str], bool]) -> Weights:
    """Draws the flat weights of a model whose names are wanted."""

    def fresh() -> dict[str, jax.Array]:
        flat = flatten(nn.unbox(init_params(model, seed)), model.config)
        return {name: x for name, x in flat.items() if wanted(name)}

    # Under jit, weights that are not wanted are not computed either.
    return {name: np.asarray(x) for name, x in jax.jit(fresh)().items()}


def add_missing_heads(
    weights: Weights, config: BertConfig, terms: Sequence[str], seed: int
) -> list[str]:
    """Initialises, in place, the heads that the weights lack entirely; returns their labels."""
    present = {head_of(name) for name in weights}
    labels = head_labels(config, terms)
    missing = [head for head in labels if head not in present]
    if missing:
        model = PreTrainingModel(_unscanned(config), make_terms(terms))
        weights.update(initial_weights(model, seed, lambda name: head_of(name) in missing))
    return [labels[head] for head in missing]


def cut_vocabulary(weights: Weights, vocab_size: int) -> None:
    """Drops, in place, the rows beyond the vocabulary."""
    for name in filter(_has_vocabulary, weights):
        weights[name] = weights[name][:vocab_size]


def _has_vocabulary(name: str) -> bool:
    """Returns whether a weight has a row for each entry of the vocabulary."""
    is_decoder_bias = name.endswith("/output_bias") and not name.startswith(ENCODER)
    return name == _WORD_EMBEDDINGS or is_decoder_bias


def _unscanned(config: BertConfig) -> BertConfig:
    return dataclasses.replace(config, scan_layers=False)
