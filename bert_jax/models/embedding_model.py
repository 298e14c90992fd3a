"""The encoder that turns a text into a vector."""

from collections.abc import Mapping
from typing import ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.bert_encoder import BertEncoder
from bert_jax.models.heads import OutputLayer


class VectorModel(nn.Module):
    """A model whose outputs have vectors of texts by the name `embeddings`."""

    # See `TaskModel`.
    INPUTS: ClassVar[tuple[str, ...]] = ("input_ids", "token_type_ids", "attention_mask")
    PER_TOKEN: ClassVar[bool] = False

    @property
    def fields(self) -> dict[str, int]:
        """The batch fields that the model is called with, and their numbers of axes."""
        return dict.fromkeys(self.INPUTS, 2)

    def for_queries(self) -> Self:
        """Returns the model of queries, which has the same parameters."""
        return self


class EmbeddingModel(VectorModel):
    """The encoder with a pooling; its vectors have the lengths that come out.

    Attributes:
      pooling: "mean" for the mean over all tokens with [CLS] and [SEP], or "cls" for the first.
      num_outputs: The classes of the loss softmax, whose layer is only for training; else 0.
    """

    config: BertConfig
    pooling: str = "mean"
    num_outputs: int = 0

    def setup(self):
        self.bert = BertEncoder(self.config, has_pooler=False)
        if self.num_outputs:
            self.classifier = OutputLayer(self.config, self.num_outputs)

    def __call__(
        self, batch: Mapping[str, jax.Array], *, deterministic: bool
    ) -> dict[str, jax.Array]:
        """Returns `embeddings` [N, D], float32.

        Args:
          batch: The fields of `INPUTS`, each [N, L]; see `BertEncoder`. The attention mask is 2 at
            tokens of a prompt that the pooling leaves out.
        """
        ids_NxL, types_NxL, mask_NxL = (batch[name] for name in self.INPUTS)
        is_token_NxL = (mask_NxL > 0).astype(mask_NxL.dtype)
        hidden_NxLxD, _ = self.bert(ids_NxL, types_NxL, is_token_NxL, deterministic=deterministic)
        if self.num_outputs and self.is_initializing():
            self.classify(hidden_NxLxD[:, 0], hidden_NxLxD[:, 0])
        return {"embeddings": pooled(hidden_NxLxD, mask_NxL == 1, self.pooling)}

    def classify(self, first_NxD: jax.Array, second_NxD: jax.Array) -> jax.Array:
        """Returns the logits of pairs, float32 [N, num_outputs] (Reimers and Gurevych 2019)."""
        difference_NxD = jnp.abs(first_NxD - second_NxD)
        return self.classifier(jnp.concatenate([first_NxD, second_NxD, difference_NxD], axis=-1))


def pooled(hidden_NxLxD: jax.Array, is_pooled_NxL: jax.Array, pooling: str) -> jax.Array:
    """Returns the state of the first pooled token ("cls") or their mean, float32 [N, D]."""
    is_pooled_NxLx1 = is_pooled_NxL[..., None]
    if pooling == "cls":
        first_Nx1x1 = jnp.argmax(is_pooled_NxLx1, axis=1, keepdims=True)
        return jnp.take_along_axis(hidden_NxLxD, first_Nx1x1, 1)[:, 0].astype(jnp.float32)
    sum_NxD = jnp.sum(hidden_NxLxD, axis=1, where=is_pooled_NxLx1, dtype=jnp.float32)
    return sum_NxD / jnp.maximum(jnp.sum(is_pooled_NxLx1, axis=1), 1)
