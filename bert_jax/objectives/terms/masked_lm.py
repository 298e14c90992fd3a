"""Masked language modelling (paper, section 3.1, task 1)."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.batch import MASKED_LM_FIELDS
from bert_jax.models.heads import LanguageModelHead
from bert_jax.objectives.language_model import (
    DENOMINATOR_EPSILON,
    language_model_metrics,
    language_model_results,
)
from bert_jax.objectives.term import Term, example_weights


@dataclasses.dataclass(frozen=True)
class MaskedLM(Term):
    """Predicts the original tokens at the chosen positions.

    The loss of a batch is sum(w * l) / (sum(w) + 1e-5) over all its positions.
    """

    name = "mlm"
    label = "masked LM"
    fields = MASKED_LM_FIELDS
    metrics = language_model_metrics("mlm", "masked-LM")

    def heads(self, config):
        return {"mlm": LanguageModelHead(config)}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns logits_BxMxW, float32; W is the padded vocabulary."""
        table_WxD = model.bert.embeddings.word_embeddings
        return model.mlm(hidden_BxLxD, batch["masked_lm_positions"], table_WxD)

    def total(self, batch):
        return jnp.sum(batch["masked_lm_weights"]) + DENOMINATOR_EPSILON

    def sums(self, logits_BxMxW, batch, frozen=None):
        weights_BxM = _weights(batch)
        label_logits_BxM = jnp.take_along_axis(
            logits_BxMxW, batch["masked_lm_ids"][..., None], axis=-1
        )[..., 0]
        losses_BxM = jax.nn.logsumexp(logits_BxMxW, axis=-1) - label_logits_BxM
        # A maximum is a cheaper reduction than an argmax, especially on a CPU.
        correct_BxM = label_logits_BxM >= jnp.max(logits_BxMxW, axis=-1)
        return {
            "loss": jnp.sum(weights_BxM * losses_BxM),
            "accuracy": jnp.sum(weights_BxM * correct_BxM),
            "weight": jnp.sum(weights_BxM),
        }

    def baseline_sums(self, batch, unigram_log_probs_V):
        """Scores unigram frequencies; the guess is always the most frequent token."""
        weights_BxM, ids_BxM = _weights(batch), batch["masked_lm_ids"]
        guess = jnp.argmax(unigram_log_probs_V)
        return {
            "unigram_loss": -jnp.sum(weights_BxM * unigram_log_probs_V[ids_BxM]),
            "unigram_accuracy": jnp.sum(weights_BxM * (ids_BxM == guess)),
        }

    def results(self, sums):
        return language_model_results("mlm", sums)

    def head_flops(self, config, length, num_predictions):
        width = config.hidden_size
        return 2 * num_predictions * (width**2 + width * config.vocab_size)


def _weights(batch):
    return batch["masked_lm_weights"] * example_weights(batch)[:, None]
