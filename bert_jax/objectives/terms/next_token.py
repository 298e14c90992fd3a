"""Left-to-right language modeling: the next token at every position.

This is the LTR ablation of the BERT paper (section 5.1); the model must be causal.
"""

import dataclasses

import jax.numpy as jnp

from bert_jax.models.heads import LanguageModelHead
from bert_jax.objectives.cross_entropy import TextPrediction
from bert_jax.objectives.language_model import language_model_head_flops, language_model_metrics
from bert_jax.objectives.term import example_weights


@dataclasses.dataclass(frozen=True)
class NextToken(TextPrediction):
    """Predicts the next token at each position, up to the last real token, including [SEP]."""

    name = "lm"
    label = "next token"
    metrics = language_model_metrics("lm", "next-token")
    is_left_to_right = True

    def heads(self, config):
        return {"mlm": LanguageModelHead(config)}

    def total(self, batch):
        return jnp.sum(batch["attention_mask"][:, 1:])

    def targets(self, batch):
        # The last position has no next token.
        following = ((0, 0), (0, 1))
        targets_BxL = jnp.pad(batch["input_ids"][:, 1:], following)
        weights_BxL = jnp.pad(batch["attention_mask"][:, 1:], following).astype(jnp.float32)
        return targets_BxL, weights_BxL * example_weights(batch)[:, None]

    def head_flops(self, config, length, num_predictions):
        return length * language_model_head_flops(config)
