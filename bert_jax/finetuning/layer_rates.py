"""Learning rates that differ between layers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import optax

from bert_jax.training.optimizer import names_of

_EMBEDDINGS = (("bert", "embeddings"), ("bert", "embeddings_project"))
_ENCODER = ("bert", "encoder")


def layer_factors(
    params: Any,
    num_layers: int,
    decay: float,
    own: Mapping[str, float] = MappingProxyType({}),
) -> Any:
    """Makes a tree like `params` of float32 factors on the learning rate.

    The head, the pooler and the LayerNorm after the last block have the full rate. The rate shrinks
    by `decay` at the last block, again at each block below, and once more at the embeddings (Howard
    & Ruder 2018; Clark et al. 2020 for models like BERT).

    Args:
      num_layers: The number of blocks of the encoder. Blocks that share their parameters count as
        one.
      own: Factors of single parameters beside the encoder, by path.
    """

    def factor(path: tuple, _: Any) -> np.ndarray:
        names = names_of(path)
        part, depth = tuple(names[:2]), num_layers + 1
        if part in _EMBEDDINGS:
            depth = 0
        elif part == _ENCODER and names[2] != "layer_norm":
            depth = 1 + int(names[2].removeprefix("layer_"))
        of_layer = decay ** (num_layers + 1 - depth)
        return np.array(own.get("/".join(names), of_layer), np.float32)

    return jax.tree_util.tree_map_with_path(factor, params)


def scaled_by_layer(
    num_layers: int, decay: float, own: Mapping[str, float] = MappingProxyType({})
) -> optax.GradientTransformation:
    """Makes a transformation that multiplies updates, with weight decay, by `layer_factors`."""

    def scale(updates, params=None):
        factors = layer_factors(updates, num_layers, decay, own)
        return jax.tree.map(lambda x, f: x * f, updates, factors)

    return optax.stateless(scale)
