"""Learning rates that differ between layers."""

import dataclasses
from typing import Any

import jax
import numpy as np
import optax

from bert_jax.training.optimizer import STACKED_LAYERS, names_of

_EMBEDDINGS = (("bert", "embeddings"), ("bert", "embeddings_project"))
_ENCODER = ("bert", "encoder")


@dataclasses.dataclass(frozen=True)
class LayerRates:
    """Factors on the learning rate of each parameter.

    Attributes:
      num_layers: The number of blocks of the encoder. Blocks that share their parameters count
        as one.
      decay: The head and the pooler have the full rate. The rate shrinks by this factor at the
        last block, again at each block below, and once more at the embeddings (Howard & Ruder
        2018; Clark et al. 2020 for models like BERT).
    """

    num_layers: int
    decay: float

    def factors(self, params: Any) -> Any:
        """Makes a tree of float32 numpy arrays that broadcast against the leaves of `params`."""
        return jax.tree_util.tree_map_with_path(self._factor, params)

    def scaling(self) -> optax.GradientTransformation:
        """Makes a transformation that multiplies updates, with weight decay, by the factors."""

        def update(updates, state, params=None):
            return jax.tree.map(lambda x, f: x * f, updates, self.factors(updates)), state

        return optax.GradientTransformation(lambda params: optax.EmptyState(), update)

    def _factor(self, path: tuple, leaf: Any) -> np.ndarray:
        names = names_of(path)
        part = tuple(names[:2])
        if part in _EMBEDDINGS:
            return self._of_depth(np.array(0))
        if part == _ENCODER and names[2] == STACKED_LAYERS:
            depths = 1 + np.arange(self.num_layers)
            return self._of_depth(depths.reshape(-1, *[1] * (len(leaf.shape) - 1)))
        if part == _ENCODER:
            return self._of_depth(np.array(1 + int(names[2].removeprefix("layer_"))))
        return np.ones((), np.float32)

    def _of_depth(self, depth: np.ndarray) -> np.ndarray:
        """Computes the factor at a depth: 0 for the embeddings, from 1 for the blocks."""
        return np.asarray(self.decay ** (self.num_layers + 1 - depth), np.float32)
