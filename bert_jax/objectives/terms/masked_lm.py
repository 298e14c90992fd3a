"""Masked language modelling (paper, section 3.1, task 1)."""

import dataclasses

import jax.numpy as jnp

from bert_jax.batch import MASKED_LM_FIELDS
from bert_jax.models.heads import LanguageModelHead
from bert_jax.objectives.language_model import (
    DENOMINATOR_EPSILON,
    language_model_head_flops,
    language_model_metrics,
    language_model_results,
    language_model_sums,
    unigram_sums,
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

    def sums(self, logits_BxMxW, batch, teacher=None):
        return language_model_sums(logits_BxMxW, batch["masked_lm_ids"], _weights(batch))

    def baseline_sums(self, batch, unigram_log_probs_V):
        return unigram_sums(batch["masked_lm_ids"], _weights(batch), unigram_log_probs_V)

    def results(self, sums):
        return language_model_results("mlm", sums)

    def head_flops(self, config, length, num_predictions):
        return num_predictions * language_model_head_flops(config)


def _weights(batch):
    return batch["masked_lm_weights"] * example_weights(batch)[:, None]
