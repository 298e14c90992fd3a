"""A model's parameters as flat weights, the common form of all conversions.

The *flat* form is a dict from the path of each parameter, joined by "/", to a numpy
array: `bert/encoder/layer_0/attention/query_kernel`. The model pads its vocabulary; the flat form
has only the rows of the vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax import traverse_util

from bert_jax.models import BertConfig
from bert_jax.models.input_embeddings import has_vocabulary
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import BERT_TERMS, make_terms
from bert_jax.training.state import abstract_params, init_params

ENCODER = "bert/"
POOLER = "bert/pooler"
_LAYERS = "bert/encoder/layer_"

Weights = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


def head_of(name: str) -> str:
    """Finds the head that a flat weight belongs to; empty for the encoder's own weights."""
    if name.startswith(f"{POOLER}/"):
        return POOLER
    return "" if name.startswith(ENCODER) else name.partition("/")[0]


def head_labels(config: BertConfig, terms: Sequence[str]) -> dict[str, str]:
    """Maps the heads of a model with these terms to their names in messages."""
    labels = {}
    for term in make_terms(terms):
        if term.needs_pooler:
            labels[POOLER] = "pooler"
        label = f"{term.label.replace(' ', '-')} head"
        labels |= dict.fromkeys(term.heads(config), label)
    return labels


def flatten(params: Any, config: BertConfig) -> Weights:
    """Turns the model's parameters into flat weights, all of them views."""
    flat = traverse_util.flatten_dict(params, sep="/")
    cut_vocabulary(flat, config.vocab_size)
    return flat


def unflatten(weights: Mapping[str, np.ndarray], config: BertConfig) -> Any:
    """Inverts `flatten`; a head that the weights lack is absent from the result too."""
    flat = dict(weights)
    for name in filter(has_vocabulary, flat):
        padding = [(0, config.padded_vocab_size - config.vocab_size)]
        flat[name] = np.pad(flat[name], padding + [(0, 0)] * (flat[name].ndim - 1))
    return traverse_util.unflatten_dict(flat, sep="/")


def expected_shapes(config: BertConfig, terms: Sequence[str] = BERT_TERMS) -> Shapes:
    """Computes the shape of every flat weight of a pre-training model, by name."""
    return model_shapes(PreTrainingModel(config, make_terms(terms)))


def model_shapes(model: nn.Module) -> Shapes:
    """Computes the shape of every flat weight of a model, by name."""
    params = nn.unbox(abstract_params(model))
    weights = jax.eval_shape(lambda params: flatten(params, model.config), params)
    return {name: leaf.shape for name, leaf in weights.items()}


def complete_weights(model: nn.Module, given: Weights, seed: int) -> tuple[Weights, list[str]]:
    """Completes the given weights with initial weights, drawn from the seed.

    Returns:
      The weights of the model, and the names of those that were drawn. Given weights that the
      model does not have are left out.
    """
    names = model_shapes(model)
    weights = {name: value for name, value in given.items() if name in names}
    missing = sorted(names.keys() - weights.keys())
    if missing:
        # jit leaves out the computation of unneeded weights.
        def draw() -> dict[str, jax.Array]:
            fresh = flatten(nn.unbox(init_params(model, seed)), model.config)
            return {name: fresh[name] for name in missing}

        drawn = jax.jit(draw)()
        weights |= {name: np.asarray(value) for name, value in drawn.items()}
    return weights, missing


def keep_layers(weights: Weights, layers: Sequence[int]) -> Weights:
    """Keeps the embeddings, these layers of the encoder in this order, and the heads."""
    kept = {name: value for name, value in weights.items() if not name.startswith(_LAYERS)}
    for new, old in enumerate(layers):
        prefix = f"{_LAYERS}{old}/"
        for name in [name for name in weights if name.startswith(prefix)]:
            kept[f"{_LAYERS}{new}/{name.removeprefix(prefix)}"] = weights[name]
    return kept


def cut_vocabulary(weights: Weights, vocab_size: int) -> None:
    """Drops the rows beyond the vocabulary from `weights` itself."""
    for name in filter(has_vocabulary, weights):
        weights[name] = weights[name][:vocab_size]


def extend_vocabulary(
    weights: Weights, pieces: Mapping[int, Sequence[int]], vocab_size: int
) -> None:
    """Gives `weights` itself rows for more tokens.

    Args:
      pieces: The ids of the tokens that a new token replaces, by its id. Its row is the mean of
        their rows; its bias, of their biases.
      vocab_size: The number of rows then.
    """
    for name in filter(has_vocabulary, weights):
        old = weights[name]
        new = np.zeros((vocab_size, *old.shape[1:]), old.dtype)
        new[: len(old)] = old
        for i, ids in pieces.items():
            new[i] = old[list(ids)].mean(axis=0)
        weights[name] = new
