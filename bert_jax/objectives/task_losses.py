"""The losses of fine-tuning: labels, a number, the ends of a span (paper, section 4)."""

import abc
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.task_models import Outputs
from bert_jax.objectives.flops import decoder_flops, encoder_flops
from bert_jax.objectives.objective import Batch, Metrics, apply


class TaskLoss(abc.ABC):
    """The mean of a loss over the labels of a batch; see `Objective`."""

    averaged: tuple[str, ...] = ("loss", "accuracy")
    progress = {"accuracy": "accuracy"}

    @abc.abstractmethod
    def totals(self, batch: Batch) -> jax.Array | int:
        """Counts the labels in the batch."""

    @abc.abstractmethod
    def sums(self, outputs: Outputs, batch: Batch) -> Metrics:
        """Computes the sums over all labels of the batch of the metrics in `averaged`."""

    def loss(self, model, params, batch, rngs, totals, frozen, step):
        sums = self.sums(apply(model, params, batch, rngs), batch)
        means = {name: value / totals for name, value in sums.items()}
        return means["loss"], means

    def evaluate(self, model: Any, params: Any, batch: Batch, frozen: Any) -> Outputs:
        """Computes the model's outputs, float32."""
        return apply(model, params, batch)

    def flops(self, model, length, num_predictions, mean_square=None):
        """Computes the FLOPs of forward and backward for one sequence.

        Args:
          length: Tokens of a sequence; each of C choices is a sequence.
        """
        c, width = model.config, model.config.hidden_size
        num_read = length if model.PER_TOKEN else 1
        # The dense layers before the head: a pooler, or that of the masked-LM head.
        pooling = c.classifier_pooling
        num_dense = num_read if pooling != "pooler" else int(model.POOLED)
        if pooling == "late" and model.POOLED:
            num_dense = length
        elif (pooling == "pooler" and c.pooler_act == "none") or not (
            c.head_transform or model.POOLED
        ):
            num_dense = 0
        head = 2 * width**2 * num_dense + 2 * num_read * width * model.num_outputs
        forward = encoder_flops(c, length, None) + head
        if c.num_decoder_layers:
            # The decoder reads the same tokens; its logits are not computed.
            forward += decoder_flops(c, length, length) - 2 * length * width * c.vocab_size
        return 3.0 * forward


class Labels(TaskLoss):
    """Cross-entropy of `labels`, int32 [...], for logits [..., C]; -1 marks no label.

    The labels may be of sequences, tokens or choices.

    Args:
      class_weights: A factor for the loss of each class; empty for 1. The sum is divided by the
        number of labels, not by their weights, so that a batch counts as its rows do.
    """

    def __init__(self, class_weights: Sequence[float] = ()):
        self._class_weights = class_weights

    def totals(self, batch: Batch) -> jax.Array:
        return jnp.maximum(jnp.sum(batch["labels"] >= 0), 1)

    def sums(self, outputs: Outputs, batch: Batch) -> Metrics:
        loss, correct = _cross_entropy(outputs["logits"], batch["labels"], self._class_weights)
        return {"loss": loss, "accuracy": correct}


class LabelSets(TaskLoss):
    """Binary cross-entropy of `labels`, float32 [B, C], for logits [B, C]: the mean over both axes.

    `accuracy` is the fraction of labels that are rightly given or not given.
    """

    def totals(self, batch: Batch) -> int:
        return batch["labels"].size

    def sums(self, outputs: Outputs, batch: Batch) -> Metrics:
        logits, labels = outputs["logits"], batch["labels"]
        correct = (logits > 0) == (labels > 0)
        return {
            "loss": jnp.sum(jax.nn.softplus(logits) - labels * logits),
            "accuracy": jnp.sum(correct, dtype=jnp.float32),
        }


class Number(TaskLoss):
    """Squared error of `labels`, float32 [B], for logits [B, 1]."""

    averaged = ("loss",)
    progress = {}

    def totals(self, batch: Batch) -> int:
        return batch["labels"].shape[0]

    def sums(self, outputs: Outputs, batch: Batch) -> Metrics:
        return {"loss": jnp.sum((outputs["logits"][:, 0] - batch["labels"]) ** 2)}


class AnswerSpan(TaskLoss):
    """The mean cross-entropy of both ends, each over all L positions (run_squad.py).

    `accuracy` is the fraction of correct positions among all starts and ends.
    """

    def totals(self, batch: Batch) -> int:
        return batch["start_positions"].shape[0]

    def sums(self, outputs: Outputs, batch: Batch) -> Metrics:
        start = _cross_entropy(outputs["start_logits"], batch["start_positions"])
        end = _cross_entropy(outputs["end_logits"], batch["end_positions"])
        return {"loss": (start[0] + end[0]) / 2, "accuracy": (start[1] + end[1]) / 2}


def _cross_entropy(
    logits: jax.Array, labels: jax.Array, class_weights: Sequence[float] = ()
) -> tuple[jax.Array, jax.Array]:
    """Computes the sums of -log p and of right guesses, over the labels that are not negative."""
    is_label = labels >= 0
    log_probs = jax.nn.log_softmax(logits)
    losses = -jnp.take_along_axis(log_probs, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    if class_weights:
        losses *= jnp.array(class_weights, losses.dtype)[labels]
    correct = jnp.argmax(logits, axis=-1) == labels
    return jnp.sum(losses * is_label), jnp.sum(correct & is_label, dtype=jnp.float32)


def label_loss(
    num_labels: int, multi_label: bool = False, class_weights: Sequence[float] = ()
) -> TaskLoss:
    """Makes the loss of sequences with one label or, if `multi_label`, with any number of labels.

    If `num_labels` is 0, sequences have a number instead of a label.
    """
    if multi_label:
        return LabelSets()
    return Labels(class_weights) if num_labels else Number()
