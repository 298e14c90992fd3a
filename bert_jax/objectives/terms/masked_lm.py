"""Masked language modeling, and the boundary objective of SpanBERT."""

import dataclasses

from bert_jax.base.batch import MASKED_LM_FIELDS, SPAN_BOUNDARY_FIELDS
from bert_jax.models.heads import LanguageModelHead, SpanBoundaryHead
from bert_jax.objectives.language_model import (
    MaskedTokenPrediction,
    language_model_head_flops,
    language_model_metrics,
)


@dataclasses.dataclass(frozen=True)
class MaskedLM(MaskedTokenPrediction):
    """Predicts the original tokens at the chosen positions (paper, section 3.1, task 1)."""

    name = "mlm"
    label = "masked LM"
    metrics = language_model_metrics("mlm", "masked-LM")

    def heads(self, config):
        return {"mlm": LanguageModelHead(config)}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns logits_BxMxW, float32; W is the padded vocabulary."""
        table_WxE = model.bert.embeddings.table_WxE
        return model.mlm(hidden_BxLxD, batch["masked_lm_positions"], table_WxE)

    def head_flops(self, config, length, num_predictions):
        return num_predictions * language_model_head_flops(config)


@dataclasses.dataclass(frozen=True)
class SpanBoundary(MaskedTokenPrediction):
    """Predicts the tokens of each masked span from the states beside it.

    This is the boundary objective of Joshi et al. 2020 (arXiv:1907.10529), section 3.2.

    The `span_weights` are 1 for predictions whose span has a boundary. (SpanBERT's criterion adds 1
    to the sum of the weights of each device.)
    """

    name = "sbo"
    label = "span boundary"
    fields = {**MASKED_LM_FIELDS, **SPAN_BOUNDARY_FIELDS}
    weights_field = "span_weights"
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
            model.bert.embeddings.table_WxE,
        )

    def head_flops(self, config, length, num_predictions):
        width = config.hidden_size
        first = (2 * width + SpanBoundaryHead.POSITION_SIZE) * width
        return num_predictions * (2 * first + language_model_head_flops(config))
