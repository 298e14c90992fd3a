"""What the training step asks of an objective."""

from collections.abc import Mapping
from typing import Any, Protocol

import jax

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


class Objective(Protocol):
    """What a model is trained for: a loss, what is told of it, and an evaluation.

    Attributes:
      averaged: Names of the loss's metrics, which lines of metrics average over steps.
      accuracies: Those of them that a person wants to see, and in which words.
      eval_operands: How many arrays `evaluate` takes beside the batch.
    """

    averaged: tuple[str, ...]
    accuracies: Mapping[str, str]
    eval_operands: int

    def totals(self, batch: Batch) -> Any:
        """What the sums over any part of this batch are divided by: numbers of the whole."""
        ...

    def loss(
        self, model: Any, params: Any, batch: Batch, dropout_key: jax.Array, totals: Any
    ) -> tuple[jax.Array, Metrics]:
        """The loss of a part of a batch and its metrics; over all parts they add up."""
        ...

    def evaluate(self, model: Any, params: Any, batch: Batch, *operands: Any) -> Metrics:
        """What an evaluation wants of a batch: sums, or the model's outputs; no dropout."""
        ...


def apply(model: Any, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> Any:
    """The model's outputs; without a key there is no dropout."""
    return model.apply(
        {"params": params},
        *(batch[name] for name in model.INPUTS),
        deterministic=dropout_key is None,
        rngs=None if dropout_key is None else {"dropout": dropout_key},
    )
