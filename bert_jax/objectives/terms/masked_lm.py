"""Masked language modeling (paper, section 3.1, task 1)."""

import dataclasses

from bert_jax.models.heads import LanguageModelHead
from bert_jax.objectives.language_model import (
    MaskedTokenPrediction,
    language_model_head_flops,
    language_model_metrics,
)


@dataclasses.dataclass(frozen=True)
class MaskedLM(MaskedTokenPrediction):
    """Predicts the original tokens at the chosen positions."""

    name = "mlm"
    label = "masked LM"
    metrics = language_model_metrics("mlm", "masked-LM")

    def heads(self, config):
        return {"mlm": LanguageModelHead(config)}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns logits_BxMxW, float32; W is the padded vocabulary."""
        table_WxE = model.bert.embeddings.word_embeddings
        return model.mlm(hidden_BxLxD, batch["masked_lm_positions"], table_WxE)

    def head_flops(self, config, length, num_predictions):
        return num_predictions * language_model_head_flops(config)
