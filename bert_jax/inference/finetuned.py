"""A fine-tuned BERT."""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from bert_jax.heads import load_head
from bert_jax.heads.sequence_classification import find_text_columns
from bert_jax.inference import forward
from bert_jax.inference.bert import Bert
from bert_jax.interop import formats
from bert_jax.interop.pretrained import Pretrained
from bert_jax.tokenizers import TokenRow


class FineTuned(Bert):
    """A `Bert` with a task head; it also computes features.

    It has the methods of its head, such as `classify`; see `bert_jax.heads`.

    Attributes:
      head: The name of the head, such as "sequence_classification".
      multi_label: Whether the labels are independent: any number of them may be right.
      activation: See `Pretrained.activation`.
      threshold: The probability above which `predict` gives such a label.
      text_columns: The columns of the one or two sentences of a training example; empty if they
        are not known.
      trained: The config that the model was trained with; empty if it is not known.
    """

    def __init__(self, pretrained: Pretrained):
        super().__init__(pretrained)
        self.head, self.labels = pretrained.head, pretrained.labels
        self.multi_label, self.activation = pretrained.multi_label, pretrained.activation
        self.trained: dict[str, Any] = pretrained.training.get("config") or {}
        self.text_columns = find_text_columns(self.trained)
        self.threshold = self.trained.get("table", {}).get("threshold", 0.5)

    def outputs(self, rows: Sequence[TokenRow]) -> list[np.ndarray]:
        """Computes the outputs of the head for each row.

        Returns:
          For each row a float32 array [K, ...] of the K outputs of the model in the order of their
          names. A model with `logits` only has one: [1, num_outputs], or [1, L, num_outputs] with
          an output for each token.
        """
        model = load_head(self.head).make_model(self.config, len(self.labels))
        return self.run(rows, partial(forward.task_outputs, model, self.params))


def load_bert(path: str, step: int | None = None) -> Bert:
    """Reads a model, with a warning for each part that is left out; see `bert_jax.load`."""
    pretrained = formats.read(path, step=step)
    bert = (FineTuned if pretrained.head else Bert)(pretrained)
    for warning in pretrained.warnings:
        warnings.warn(warning, stacklevel=3)
    return bert
