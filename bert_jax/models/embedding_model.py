"""The encoder that turns a text into a vector."""

from collections.abc import Mapping
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.bert import BertEncoder
from bert_jax.models.bert_config import BertConfig
from bert_jax.models.heads import OutputLayer


class EmbeddingModel(nn.Module):
    """The encoder with a pooling; its vectors have the lengths that come out.

    Attributes:
      pooling: "mean" for the mean over all tokens with [CLS] and [SEP], or "cls" for the first.
      num_labels: The classes of the loss softmax, whose layer is only for training; else 0.
    """

    # See `TaskModel`.
    INPUTS: ClassVar[tuple[str, ...]] = ("input_ids", "token_type_ids", "attention_mask")
    PER_TOKEN: ClassVar[bool] = False

    config: BertConfig
    pooling: str = "mean"
    num_labels: int = 0

    def setup(self):
        self.bert = BertEncoder(self.config, has_pooler=False)
        if self.num_labels:
            self.classifier = OutputLayer(self.config, self.num_labels)

    def __call__(
        self, batch: Mapping[str, jax.Array], *, deterministic: bool
    ) -> dict[str, jax.Array]:
        """Returns `embeddings` [N, D], float32.

        Args:
          batch: The fields of `INPUTS`, each [N, L]; see `BertEncoder`.
          deterministic: True for evaluation: no dropout, no "dropout" rng needed.
        """
        inputs = (batch[name] for name in self.INPUTS)
        hidden_NxLxD, _ = self.bert(*inputs, deterministic=deterministic)
        if self.num_labels and self.is_initializing():
            self.classify(hidden_NxLxD[:, 0], hidden_NxLxD[:, 0])
        return {"embeddings": pooled(hidden_NxLxD, batch["attention_mask"], self.pooling)}

    @property
    def fields(self) -> dict[str, int]:
        """The batch fields that the model is called with, and their numbers of axes."""
        return dict.fromkeys(self.INPUTS, 2)

    def classify(self, first_NxD: jax.Array, second_NxD: jax.Array) -> jax.Array:
        """Returns the logits of pairs, float32 [N, num_labels] (Reimers and Gurevych 2019)."""
        difference_NxD = jnp.abs(first_NxD - second_NxD)
        return self.classifier(jnp.concatenate([first_NxD, second_NxD, difference_NxD], axis=-1))


def pooled(hidden_NxLxD: jax.Array, mask_NxL: jax.Array, pooling: str) -> jax.Array:
    """Returns the state of the first token ("cls") or the mean of all ("mean"), float32 [N, D]."""
    if pooling == "cls":
        return hidden_NxLxD[:, 0].astype(jnp.float32)
    is_token_NxLx1 = mask_NxL[..., None] > 0
    sum_NxD = jnp.sum(hidden_NxLxD, axis=1, where=is_token_NxLx1, dtype=jnp.float32)
    return sum_NxD / jnp.maximum(jnp.sum(is_token_NxLx1, axis=1), 1)
