"""The loss of generating a target text, and the generation of texts in evaluation."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.cached_decoder import generate_texts
from bert_jax.models.generation import Search
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.cross_entropy import smoothed_cross_entropy
from bert_jax.objectives.objective import Batch, Metrics, apply
from bert_jax.objectives.terms.denoising import Denoising


class Seq2SeqModel(PreTrainingModel):
    """The model of pre-training: an encoder, and a decoder that predicts the target's tokens."""

    # The outputs of `Seq2Seq.evaluate` have no axis of input positions.
    PER_TOKEN = False


def make_seq2seq_model(config: BertConfig) -> Seq2SeqModel:
    """Builds a model with the parameters of the term `denoising`."""
    return Seq2SeqModel(config, (Denoising(),))


@dataclasses.dataclass(frozen=True)
class Seq2Seq:
    """Cross-entropy of the target tokens with label smoothing; see `Objective`.

    `accuracy` is the fraction of target tokens that are the likeliest after those before them.

    Attributes:
      search: How texts are generated in evaluation.
      label_smoothing: See `smoothed_cross_entropy`.
    """

    averaged: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    progress: ClassVar[dict[str, str]] = {"accuracy": "accuracy"}
    eval_operands: ClassVar[int] = 0

    search: Search
    label_smoothing: float

    def totals(self, batch: Batch) -> jax.Array:
        return jnp.sum(batch["decoder_attention_mask"])

    def loss(self, model, params, batch, rngs, totals, frozen):
        loss, correct = smoothed_cross_entropy(
            apply(model, params, batch, rngs)[Denoising.name],
            batch["labels"],
            batch["decoder_attention_mask"].astype(jnp.float32),
            smoothing=self.label_smoothing,
            vocab_size=model.config.vocab_size,
        )
        return loss / totals, {"loss": loss / totals, "accuracy": correct / totals}

    def evaluate(self, model: Any, params: Any, batch: Batch, frozen: Any) -> Metrics:
        """Generates texts: "generated", int32 [B, T]."""
        return {"generated": generate_texts(model.config, params, batch, self.search)}
