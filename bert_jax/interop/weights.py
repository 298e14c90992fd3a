"""The model's parameters under one flat set of names, whatever they are laid out as.

The *flat* form is a dict from the path of each parameter, joined by "/", to a numpy
array: `bert/encoder/layer_0/attention/query_kernel`. Scanned layers are one stacked
tensor in the model; in the flat form every layer stands alone. The model pads its
vocabulary; the flat form has the rows of the vocabulary alone. All conversions go
through it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax import traverse_util

from bert_jax.models import BertConfig, PreTrainingModel
from bert_jax.objectives.terms import make_terms
from bert_jax.training.state import init_params

_LAYERS = "bert/encoder/layer_"
_STACKED = "bert/encoder/layers/layer/"
# What has a row for each entry of the vocabulary.
_VOCABULARY = ("bert/embeddings/word_embeddings", "mlm/output_bias")
# The parts that a checkpoint may lack as a whole: an encoder without heads is a BERT too.
HEADS = {"bert/pooler/": "pooler", "mlm/": "masked-LM head", "nsp/": "next-sentence head"}

Weights = dict[str, np.ndarray]


def flatten(params: Any, config: BertConfig) -> Weights:
    """The model's pytree as flat weights: layers taken apart, padding cut, all as views."""
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
    """The inverse: the pytree of a model of this config, its layers stacked or not.

    A head that the weights lack is not in the tree either.
    """
    flat = dict(weights)
    for name in _with_vocabulary(flat):
        padding = [(0, config.padded_vocab_size - config.vocab_size)]
        flat[name] = np.pad(flat[name], padding + [(0, 0)] * (flat[name].ndim - 1))
    if config.scan_layers:
        first = f"{_LAYERS}0/"
        for rest in [name.removeprefix(first) for name in weights if name.startswith(first)]:
            layers = range(config.num_hidden_layers)
            flat[_STACKED + rest] = np.stack([flat.pop(f"{_LAYERS}{i}/{rest}") for i in layers])
    return traverse_util.unflatten_dict(flat, sep="/")


def expected_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """The name and shape of every flat weight that a model of this config has."""
    model = PreTrainingModel(dataclasses.replace(config, scan_layers=False), make_terms())

    def fresh() -> dict[str, jax.Array]:
        return flatten(nn.unbox(init_params(model, 0)), config)

    return {name: leaf.shape for name, leaf in jax.eval_shape(fresh).items()}


def output_shapes(hidden_size: int, num_outputs: int) -> dict[str, tuple[int, ...]]:
    """The same of a fine-tuned model's output layer, which reads one state."""
    return {
        "classifier/dense/kernel": (hidden_size, num_outputs),
        "classifier/dense/bias": (num_outputs,),
    }


def initial_weights(model: nn.Module, seed: int, wanted: Callable[[str], bool]) -> Weights:
    """Flat weights of a model, drawn from the seed: those whose names are wanted."""

    def fresh() -> dict[str, jax.Array]:
        flat = flatten(nn.unbox(init_params(model, seed)), model.config)
        return {name: x for name, x in flat.items() if wanted(name)}

    # Compiled, so that what is not wanted is not made either.
    return {name: np.asarray(x) for name, x in jax.jit(fresh)().items()}


def add_missing_heads(weights: Weights, config: BertConfig, seed: int) -> list[str]:
    """Initialises, in place, the heads of which not one tensor is there; names them."""
    missing = [head for head in HEADS if not any(name.startswith(head) for name in weights)]
    if missing:
        model = PreTrainingModel(dataclasses.replace(config, scan_layers=False), make_terms())
        weights.update(initial_weights(model, seed, lambda name: name.startswith(tuple(missing))))
    return [HEADS[head] for head in missing]


def cut_vocabulary(weights: Weights, vocab_size: int) -> None:
    """Drops, in place, the rows beyond the vocabulary."""
    for name in _with_vocabulary(weights):
        weights[name] = weights[name][:vocab_size]


def _with_vocabulary(weights: Weights) -> list[str]:
    """A model without the masked-LM head lacks its bias."""
    return [name for name in _VOCABULARY if name in weights]
