"""The interface between the training step and a training objective."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

Batch = Mapping[str, jax.Array]
Metrics = dict[str, Any]
# Metrics of a step whose rows several sequences share: the number of sequences, and the sums of
# their lengths and of the squares of these.
SEQUENCE_SUMS = ("num_sequences", "num_tokens", "sum_of_squared_lengths")
# Stands for minus infinity, which would give gradients that are not numbers.
EXCLUDED = -1e30


class Objective(Protocol):
    """A loss, the metrics reported with it, and an evaluation.

    Attributes:
      averaged: Names of the metrics of `loss`, which log lines average over steps.
      progress: The metrics among these to show during training, with a short text for each.
    """

    averaged: Sequence[str]
    progress: Mapping[str, str]

    def totals(self, batch: Batch) -> Any:
        """Computes the totals of a batch, by which the sums over its parts are divided."""
        ...

    def loss(
        self,
        model: Any,
        params: Any,
        batch: Batch,
        rngs: Mapping[str, jax.Array],
        totals: Any,
        frozen: Any,
        step: jax.Array,
    ) -> tuple[jax.Array, Metrics]:
        """Computes the loss and the metrics of a part of a batch; the parts' values add up.

        Args:
          batch: A part of the batch.
          rngs: The keys "dropout" and "sample".
          totals: The result of `totals` for the whole batch.
          frozen: Parameters that are not trained, such as a teacher's; may be empty.
          step: int32, the steps before this one.
        """
        ...

    def evaluate(self, model: Any, params: Any, batch: Batch, frozen: Any, *operands: Any) -> Any:
        """Computes sums over a batch, or the model's outputs, without dropout.

        The `operands` are arrays that an objective needs in addition to the batch.
        """
        ...

    def flops(
        self, model: Any, length: float, num_predictions: float, mean_square: float | None = None
    ) -> float:
        """Computes the FLOPs of forward and backward for one sequence, matrix products only.

        If sequences differ in length, all three numbers are means.
        """
        ...


def apply(
    model: Any, params: Any, batch: Batch, rngs: Mapping[str, jax.Array] | None = None
) -> Any:
    """Computes the model's outputs; without `rngs` there is no dropout and samples are fixed."""
    return model.apply(
        {"params": params},
        batch,
        deterministic=rngs is None,
        rngs={"sample": jax.random.key(0)} if rngs is None else rngs,
    )


def split_rows(parts: int) -> Callable[[jax.Array], jax.Array]:
    """Makes a function [B, ...] -> [parts, B / parts, ...] that moves no rows between devices.

    Part i takes every `parts`-th row. The contiguous slice of the batch on a device therefore
    contains the device's share of every part.
    """

    def split(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)

    return split
