"""Next sentence prediction, and sentence order prediction of two kinds."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import entr

from bert_jax.base.batch import (
    NEXT_SENTENCE_FIELDS,
    SENTENCE_ORDER_FIELDS,
    THREE_WAY_FIELDS,
    weights_name,
)
from bert_jax.models.heads import OutputLayer
from bert_jax.objectives.term import Metric, Term, example_weights, loss_and_accuracy


def label_metrics(name: str, label: str) -> tuple[Metric, ...]:
    """Declares the metrics of a term that predicts a label of each row or sequence."""
    return (
        Metric(
            f"{name}_loss",
            f"{label} loss (nats)",
            "loss",
            baseline=f"constant_{name}_loss",
            baseline_label="the label frequencies",
        ),
        Metric(
            f"{name}_accuracy",
            f"{label} accuracy",
            "accuracy",
            baseline=f"majority_{name}_accuracy",
            baseline_label="the more common label",
            in_progress=True,
        ),
    )


@dataclasses.dataclass(frozen=True)
class RowLabel(Term):
    """Predicts a label of each row, or of each sequence of a row, from the pooler."""

    needs_pooler = True
    labels_field: ClassVar[str]
    num_labels: ClassVar[int] = 2

    def heads(self, config):
        return {self.name: OutputLayer(config, self.num_labels)}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns logits_BxC, float32, for the C labels; logits_BxPxC if sequences share rows."""
        return getattr(model, self.name)(pooled_BxD)

    def total(self, batch):
        weights_BxP = batch.get(weights_name(self.labels_field))
        return batch[self.labels_field].shape[0] if weights_BxP is None else jnp.sum(weights_BxP)

    def sums(self, logits, batch, teacher=None):
        labels = batch[self.labels_field]
        weights_BxP = batch.get(weights_name(self.labels_field))
        weights = example_weights(batch) if weights_BxP is None else weights_BxP
        log_probs = jax.nn.log_softmax(logits)
        losses = -jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
        is_correct = jnp.argmax(logits, axis=-1) == labels
        loss, correct = jnp.sum(weights * losses), jnp.sum(weights * is_correct)
        return loss_and_accuracy(self.name, loss, correct, jnp.sum(weights))

    def baseline_sums(self, batch, unigram_log_probs_V):
        weights_B, labels_B = example_weights(batch), batch[self.labels_field]
        return {
            f"label_{label}": (jnp.sum(weights_B * (labels_B == label)), jnp.sum(weights_B))
            for label in range(self.num_labels)
        }

    def results(self, sums):
        results = super().results(sums)
        frequencies = [results[f"label_{label}"] for label in range(self.num_labels)]
        return results | {
            f"constant_{self.name}_loss": float(np.sum(entr(frequencies))),
            f"majority_{self.name}_accuracy": max(frequencies),
        }

    def head_flops(self, config, length, num_predictions):
        # Only the pooler counts; the product for a few classes is negligible.
        return 2 * config.hidden_size**2 * (config.pooler_act != "none")


@dataclasses.dataclass(frozen=True)
class NextSentence(RowLabel):
    """Predicts whether segment B follows segment A (label 0) or is random (label 1).

    See section 3.1 of the paper, task 2.
    """

    name = "nsp"
    label = "next sentence"
    fields = NEXT_SENTENCE_FIELDS
    labels_field = "next_sentence_labels"
    metrics = label_metrics("nsp", "next-sentence")


@dataclasses.dataclass(frozen=True)
class SentenceOrder(RowLabel):
    """Predicts whether B follows A (label 0) or A follows B (label 1).

    This is the loss of Lan et al. 2020, section 3.1, on the pooler as in google-research/albert's
    `get_sentence_order_output`. It needs `config.data.pair_labels=order`.
    """

    name = "sop"
    label = "sentence order"
    fields = SENTENCE_ORDER_FIELDS
    labels_field = "sentence_order_labels"
    metrics = label_metrics("sop", "sentence-order")


@dataclasses.dataclass(frozen=True)
class ThreeWayOrder(RowLabel):
    """Predicts whether B follows A (label 0), A follows B (1), or B is random (2).

    This is the sentence structural objective of Wang et al. 2019 (StructBERT), section 2.2.2. It
    needs `config.data.pair_labels=three_way`.
    """

    name = "sso"
    label = "three-way sentence order"
    fields = THREE_WAY_FIELDS
    labels_field = "sentence_order_labels"
    num_labels = 3
    metrics = label_metrics("sso", "three-way sentence-order")
