"""The encoder with the heads of fine-tuning (paper, section 4)."""

from collections.abc import Mapping
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.bert_encoder import BertEncoder
from bert_jax.models.dropout import Dropout
from bert_jax.models.heads import HeadTransform, OutputLayer, pooled_token

Outputs = dict[str, jax.Array]


class TaskModel(nn.Module):
    """The encoder with one output layer; the encoder's parameters keep their names.

    Attributes:
      num_outputs: The number of outputs for each sequence, token or choice.
    """

    # Batch fields that the model is called with.
    INPUTS: ClassVar[tuple[str, ...]] = ("input_ids", "token_type_ids", "attention_mask")
    # Whether the head reads the pooler, which otherwise does not exist.
    POOLED: ClassVar[bool] = False
    # Whether there is an output per token, [B, L, ...].
    PER_TOKEN: ClassVar[bool] = False
    # Dropout on the input of the head in training (run_classifier.py: keep_prob=0.9).
    DROPOUT: ClassVar[float] = 0.1

    config: BertConfig
    num_outputs: int

    def setup(self):
        has_pooler = self.config.classifier_pooling == "pooler"
        self.bert = BertEncoder(self.config, has_pooler=self.POOLED and has_pooler)
        if not has_pooler and (self.POOLED or self.config.head_transform):
            # It begins with the weights of the masked-LM head.
            self.mlm = HeadTransform(self.config)
        self.classifier = OutputLayer(self.config, self.num_outputs)
        self.dropout = Dropout(self.DROPOUT)

    def __call__(self, batch: Mapping[str, jax.Array], *, deterministic: bool) -> Outputs:
        """Returns the float32 outputs that the class describes.

        Each field of `INPUTS` is [B, L]; see `BertEncoder`.
        """
        inputs = tuple(batch[name] for name in self.INPUTS)
        return self.outputs(self.classifier(self.encoded(inputs, deterministic)))

    @property
    def fields(self) -> dict[str, int]:
        """Every batch field that the model is called with, and its number of axes."""
        return dict.fromkeys(self.INPUTS, 2)

    def outputs(self, logits: jax.Array) -> Outputs:
        """Returns the outputs by the names that losses and scores use."""
        return {"logits": logits}

    def encoded(self, inputs: tuple[jax.Array, ...], deterministic: bool) -> jax.Array:
        """Returns the input of the head, after dropout: [B, D] if pooled, else [B, L, D]."""
        hidden_BxLxD, encoded = self.bert(*inputs, deterministic=deterministic)
        if self.config.num_decoder_layers:
            hidden_BxLxD, encoded = self._decoded(hidden_BxLxD, inputs, deterministic)
        encoded = encoded if self.POOLED else hidden_BxLxD
        pooling = self.config.classifier_pooling
        if pooling != "pooler":
            encoded = hidden_BxLxD
            if self.POOLED and pooling != "late":
                encoded = pooled_token(self.config, encoded, inputs[2])
            if self.POOLED or self.config.head_transform:
                encoded = self.mlm(encoded)
            # transformers averages logits. The output layer is affine, so that is the same.
            if self.POOLED and pooling == "late":
                encoded = pooled_token(self.config, encoded, inputs[2])
        return self.dropout(encoded, deterministic)

    def _decoded(
        self, source_BxLxD: jax.Array, inputs: tuple[jax.Array, ...], deterministic: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the decoder's states, and those at the last token after the pooler.

        The decoder reads the same tokens behind a </s> (Lewis et al. 2020, section 3), which is
        also the last token of each row.
        """
        ids_BxL, _, mask_BxL = inputs
        last_Bx1 = jnp.sum(mask_BxL, axis=1, keepdims=True) - 1
        end_Bx1 = jnp.take_along_axis(ids_BxL, last_Bx1, axis=1)
        shifted_BxL = jnp.concatenate([end_Bx1, ids_BxL[:, :-1]], axis=1)
        table_WxE = self.bert.embeddings.table_WxE
        hidden_BxLxD = self.bert.decoder(
            shifted_BxL, mask_BxL, source_BxLxD, mask_BxL, table_WxE, deterministic
        )
        if not self.POOLED:
            return hidden_BxLxD, None
        return hidden_BxLxD, self.bert.pooler(hidden_BxLxD, mask_BxL, deterministic, last_Bx1)[:, 0]


class BertForSequenceClassification(TaskModel):
    """Predicts a label or a number for a sequence or a pair: `logits` [B, num_outputs]."""

    POOLED: ClassVar[bool] = True


class BertForTokenClassification(TaskModel):
    """Predicts a label for every token: `logits` [B, L, num_outputs]."""

    PER_TOKEN: ClassVar[bool] = True


class BertForQuestionAnswering(TaskModel):
    """Predicts where an answer starts and ends: `start_logits`, `end_logits` [B, L].

    `num_outputs` is 2.
    """

    PER_TOKEN: ClassVar[bool] = True
    # As in run_squad.py.
    DROPOUT: ClassVar[float] = 0.0

    def outputs(self, logits: jax.Array) -> Outputs:
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class BertForMultipleChoice(TaskModel):
    """Predicts the right one of C sequences (paper, section 4.4); `num_outputs` is 1."""

    POOLED: ClassVar[bool] = True

    def __call__(self, batch: Mapping[str, jax.Array], *, deterministic: bool) -> Outputs:
        """Returns float32 `logits` [B, C]; see `fields`."""
        shape = batch["input_ids"].shape
        inputs = tuple(batch[name].reshape(-1, shape[-1]) for name in self.INPUTS)
        scores_Nx1 = self.classifier(self.encoded(inputs, deterministic))
        return {"logits": scores_Nx1.reshape(shape[:-1])}

    @property
    def fields(self) -> dict[str, int]:
        """Every batch field that the model is called with, [B, C, L], and its number of axes."""
        return dict.fromkeys(self.INPUTS, 3)
