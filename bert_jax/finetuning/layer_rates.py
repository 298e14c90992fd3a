"""Learning rates that differ between layers."""

import dataclasses
from typing import Any

import jax
import numpy as np
import optax

from bert_jax.training.optimizer import names_of

_EMBEDDINGS = (("bert", "embeddings"), ("bert", "embeddings_project"))
_ENCODER = ("bert", "encoder")


@dataclasses.dataclass(frozen=True)
class LayerRates:
    """Factors on the learning rate of each parameter.

    Attributes:
      num_layers: The number of blocks of the encoder. Blocks that share their parameters count
        as one.
      decay: The head, the pooler and the LayerNorm after the last block have the full rate. The
        rate shrinks by this factor at the last block, again at each block below, and once more at
        the embeddings (Howard & Ruder 2018; Clark et al. 2020 for models like BERT).
    """

    num_layers: int
    decay: float

    def factors(self, params: Any) -> Any:
        """Makes a tree of float32 numbers like `params`."""
        return jax.tree_util.tree_map_with_path(self._factor, params)

    def scaling(self) -> optax.GradientTransformation:
        """Makes a transformation that multiplies updates, with weight decay, by the factors."""

        def update(updates, state, params=None):
            return jax.tree.map(lambda x, f: x * f, updates, self.factors(updates)), state

        return optax.GradientTransformation(lambda params: optax.EmptyState(), update)

    def _factor(self, path: tuple, _: Any) -> np.ndarray:
        names = names_of(path)
        part = tuple(names[:2])
        depth = self.num_layers + 1
        if part in _EMBEDDINGS:
            depth = 0
        elif part == _ENCODER and names[2] != "layer_norm":
            depth = 1 + int(names[2].removeprefix("layer_"))
        return np.array(self.decay ** (self.num_layers + 1 - depth), np.float32)
