"""Learning rates that differ between layers, and frozen layers."""

import dataclasses
from typing import Any

import jax
import numpy as np
import optax

from bert_jax.training.optimizer import STACKED_LAYERS, names_of

_EMBEDDINGS = (("bert", "embeddings"), ("bert", "embeddings_project"))
_ENCODER, _POOLER = ("bert", "encoder"), ("bert", "pooler")


@dataclasses.dataclass(frozen=True)
class LayerRates:
    """Factors on the learning rate of each parameter.

    Attributes:
      num_layers: The number of blocks of the encoder. Blocks that share their parameters count
        as one, here and below.
      decay: The head and the pooler have the full rate. The rate shrinks by this factor at the
        last block, again at each block below, and once more at the embeddings (Howard & Ruder
        2018; Clark et al. 2020 for models like BERT).
      decay_offset: How many additional times all rates of the encoder shrink by `decay`; 1 in
        `_get_layer_lrs` of google-research/electra's optimization.py.
      frozen_layers: The number of blocks, from the first, that are frozen together with the
        embeddings; 0 freezes only the embeddings, -1 nothing.
      frozen_encoder: Whether everything below the head is frozen.
      frozen_positions: Whether the position table is frozen.
    """

    num_layers: int
    decay: float = 1.0
    decay_offset: int = 0
    frozen_layers: int = -1
    frozen_encoder: bool = False
    frozen_positions: bool = False

    def factors(self, params: Any) -> Any:
        """Makes a tree of float32 numpy arrays that broadcast against the leaves of `params`."""
        return jax.tree_util.tree_map_with_path(self._factor, params)

    def without_gradients(self, params: Any) -> Any:
        """Stops the gradients of frozen parameters. All values are unchanged."""

        def stopped(factor: np.ndarray, leaf: jax.Array) -> jax.Array:
            if factor.all():
                return leaf
            constant = jax.lax.stop_gradient(leaf)
            return jax.numpy.where(factor > 0, leaf, constant) if factor.any() else constant

        return jax.tree.map(stopped, self.factors(params), params)

    def scaling(self) -> optax.GradientTransformation:
        """Makes a transformation that multiplies updates, with weight decay, by the factors."""

        def update(updates, state, params=None):
            return jax.tree.map(lambda x, f: x * f, updates, self.factors(updates)), state

        return optax.GradientTransformation(lambda params: optax.EmptyState(), update)

    def _factor(self, path: tuple, leaf: Any) -> np.ndarray:
        names = names_of(path)
        part = tuple(names[:2])
        if self.frozen_positions and names[-1] == "position_embeddings":
            return np.zeros((), np.float32)
        if part in _EMBEDDINGS:
            return self._of_depth(np.array(0))
        if part == _ENCODER and names[2] == STACKED_LAYERS:
            depths = 1 + np.arange(self.num_layers)
            return self._of_depth(depths.reshape(-1, *[1] * (len(leaf.shape) - 1)))
        if part == _ENCODER:
            return self._of_depth(np.array(1 + int(names[2].removeprefix("layer_"))))
        frozen = part == _POOLER and self.frozen_encoder
        return np.array(not frozen, np.float32)

    def _of_depth(self, depth: np.ndarray) -> np.ndarray:
        """Computes the factor at a depth: 0 for the embeddings, from 1 for the blocks."""
        trained = (depth > self.frozen_layers) & (not self.frozen_encoder)
        power = self.num_layers + 1 + self.decay_offset - depth
        return np.where(trained, self.decay**power, 0).astype(np.float32)
