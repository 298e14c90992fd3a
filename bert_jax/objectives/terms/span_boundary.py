"""SpanBERT's boundary objective (Joshi et al. 2020, arXiv:1907.10529, section 3.2)."""

import dataclasses

import jax.numpy as jnp

from bert_jax.batch import MASKED_LM_FIELDS, SPAN_BOUNDARY_FIELDS
from bert_jax.models.heads import SpanBoundaryHead
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
class SpanBoundary(Term):
    """Predicts the tokens of each masked span from the states beside it.

    The loss of a batch is sum(w * l) / (sum(w) + 1e-5), where `span_weights` w are 1 for the
    predictions that have a boundary. (SpanBERT's criterion adds 1 to the sum of the weights of
    each device.)
    """

    name = "sbo"
    label = "span boundary"
    fields = {**MASKED_LM_FIELDS, **SPAN_BOUNDARY_FIELDS}
    metrics = language_model_metrics("sbo", "span-boundary")

    def heads(self, config):
        return {"sbo": SpanBoundaryHead(config)}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns logits_BxMxW, float32; W is the padded vocabulary."""
        return model.sbo(
            hidden_BxLxD,
            batch["span_left_positions"],
            batch["span_right_positions"],
            batch["span_offsets"],
            model.bert.embeddings.word_embeddings,
        )

    def total(self, batch):
        return jnp.sum(batch["span_weights"]) + DENOMINATOR_EPSILON

    def sums(self, logits_BxMxW, batch, teacher=None):
        return language_model_sums(logits_BxMxW, batch["masked_lm_ids"], _weights(batch))

    def baseline_sums(self, batch, unigram_log_probs_V):
        return unigram_sums(batch["masked_lm_ids"], _weights(batch), unigram_log_probs_V)

    def results(self, sums):
        return language_model_results("sbo", sums)

    def head_flops(self, config, length, num_predictions):
        width = config.hidden_size
        first = (2 * width + SpanBoundaryHead.POSITION_SIZE) * width
        return num_predictions * (2 * first + language_model_head_flops(config))


def _weights(batch):
    return batch["span_weights"] * example_weights(batch)[:, None]
