"""The loss, metrics and cost of terms that predict tokens."""

import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from bert_jax.base.batch import MASKED_LM_FIELDS, BatchFields
from bert_jax.models import BertConfig
from bert_jax.objectives.term import (
    PER_CHARACTER,
    Metric,
    Term,
    example_weights,
    loss_and_accuracy,
)

# The key of examples in the results of an evaluation.
FILLED_TEXTS = "filled_texts"
# Keeps the mean finite when a batch has no token to predict (run_pretraining.py).
DENOMINATOR_EPSILON = 1e-5
# math.exp overflows above 709.
_MAX_NATS = 700.0


def language_model_metrics(name: str, label: str) -> tuple[Metric, ...]:
    """Declares a term's metrics: loss, accuracy and perplexity, with their unigram baselines.

    The loss per character, unlike the loss of a token, can be compared between vocabularies.
    """
    units = {"loss": "loss (nats)", "accuracy": "accuracy", "perplexity": "perplexity"}
    per_character = Metric(
        f"{name}_{PER_CHARACTER}",
        f"{label} loss per character (nats)",
        PER_CHARACTER,
        in_training=False,
    )
    of_tokens = (
        Metric(
            f"{name}_{kind}",
            f"{label} {words}",
            kind,
            baseline=f"unigram_{name}_{kind}",
            baseline_label="unigram frequencies",
            in_training=kind != "perplexity",
            in_progress=kind != "perplexity",
        )
        for kind, words in units.items()
    )
    return (*of_tokens, per_character)


def token_sums(
    logits_BxMxW: jax.Array,
    ids_BxM: jax.Array,
    weights_BxM: jax.Array,
    axis: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Computes the sums of weight * -log p(id) and of weight * [id is the top prediction].

    The sums are over all positions or, with `axis` 1, over those of each row.
    """
    label_logits_BxM = _label_logits(logits_BxMxW, ids_BxM)
    losses_BxM = jax.nn.logsumexp(logits_BxMxW, axis=-1) - label_logits_BxM
    # A maximum is a cheaper reduction than an argmax, especially on a CPU.
    correct_BxM = label_logits_BxM >= jnp.max(logits_BxMxW, axis=-1)
    return jnp.sum(weights_BxM * losses_BxM, axis), jnp.sum(weights_BxM * correct_BxM, axis)


def _label_logits(logits_BxMxW: jax.Array, ids_BxM: jax.Array) -> jax.Array:
    """Returns the logits of some ids, logits_BxM."""

    def gathered(logits_BxMxW, ids_BxM):
        return jnp.take_along_axis(logits_BxMxW, ids_BxM[..., None], axis=-1)[..., 0]

    def compared(logits_BxMxW, ids_BxM):
        is_label_BxMxW = jnp.arange(logits_BxMxW.shape[-1]) == ids_BxM[..., None]
        return jnp.sum(jnp.where(is_label_BxMxW, logits_BxMxW, 0), axis=-1)

    # The gradient of a gather is a scatter. On GPUs it is a kernel of its own, for which the
    # gradient of the softmax would be written in float32.
    return jax.lax.platform_dependent(logits_BxMxW, ids_BxM, cuda=compared, default=gathered)


def language_model_head_flops(config: BertConfig) -> int:
    """Computes the FLOPs of a language-model head for one prediction, forward."""
    width = config.embedding_width
    transform = config.hidden_size * width if config.head_transform else 0
    return 2 * (transform + width * config.vocab_size)


class TokenPrediction(Term):
    """A term with `language_model_metrics`."""

    def results(self, sums):
        results = super().results(sums)
        for name in (self.name, f"unigram_{self.name}"):
            results[f"{name}_perplexity"] = math.exp(min(results[f"{name}_loss"], _MAX_NATS))
        return results


class MaskedTokenPrediction(TokenPrediction):
    """Predicts `masked_lm_ids` from logits of its own.

    The loss of a batch is sum(w * l) / (sum(w) + 1e-5) over all its positions, with the weights
    w of `weights_field`.
    """

    fields: ClassVar[BatchFields] = MASKED_LM_FIELDS
    weights_field: ClassVar[str] = "masked_lm_weights"

    def total(self, batch):
        return jnp.sum(batch[self.weights_field]) + DENOMINATOR_EPSILON

    def sums(self, logits_BxMxW, batch, teacher=None):
        weights_BxM = self._weights(batch)
        sums = token_sums(logits_BxMxW, batch["masked_lm_ids"], weights_BxM)
        return loss_and_accuracy(self.name, *sums, jnp.sum(weights_BxM))

    def baseline_sums(self, batch, unigram_log_probs_V):
        """Scores unigram frequencies; the guess is always the most frequent token."""
        ids_BxM, weights_BxM = batch["masked_lm_ids"], self._weights(batch)
        guess = jnp.argmax(unigram_log_probs_V)
        loss = -jnp.sum(weights_BxM * unigram_log_probs_V[ids_BxM])
        correct = jnp.sum(weights_BxM * (ids_BxM == guess))
        return loss_and_accuracy(f"unigram_{self.name}", loss, correct, jnp.sum(weights_BxM))

    def guesses(self, logits_BxMxW, batch, rows):
        """Returns the first rows with the most likely token at each position.

        The arrays of the batch keep their names; `guessed_ids` and `probabilities` are [rows, M].
        """
        logits_RxMxW = logits_BxMxW[:rows]
        best_RxM = jnp.max(logits_RxMxW, axis=-1)
        return {name: batch[name][:rows] for name in ("input_ids", *self.fields)} | {
            "guessed_ids": jnp.argmax(logits_RxMxW, axis=-1),
            "probabilities": jnp.exp(best_RxM - jax.nn.logsumexp(logits_RxMxW, axis=-1)),
        }

    def _weights(self, batch: Mapping[str, jax.Array]) -> jax.Array:
        return batch[self.weights_field] * example_weights(batch)[:, None]
