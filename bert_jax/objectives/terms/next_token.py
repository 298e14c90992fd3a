"""Left-to-right language modeling: the next token at every position.

This is the LTR ablation of the BERT paper (section 5.1); the model must be causal.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.models.heads import LanguageModelHead
from bert_jax.objectives.cross_entropy import decoder_inputs, sliced_cross_entropy
from bert_jax.objectives.language_model import (
    TokenPrediction,
    language_model_head_flops,
    language_model_metrics,
    text_baseline_sums,
)
from bert_jax.objectives.term import example_weights, loss_and_accuracy


@dataclasses.dataclass(frozen=True)
class NextToken(TokenPrediction):
    """Predicts the next token at each position, up to the last real token, including [SEP]."""

    name = "lm"
    label = "next token"
    metrics = language_model_metrics("lm", "next-token")
    is_left_to_right = True

    def heads(self, config):
        return {"mlm": LanguageModelHead(config)}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns `DecoderInputs`, from which the loss computes a few logits at a time."""
        return decoder_inputs(model, hidden_BxLxD)

    def total(self, batch):
        return jnp.sum(batch["attention_mask"][:, 1:])

    def sums(self, outputs, batch, teacher=None):
        targets_BxL, weights_BxL = _targets(batch)
        sums = sliced_cross_entropy(outputs, targets_BxL, weights_BxL)
        return loss_and_accuracy(self.name, *sums, jnp.sum(weights_BxL))

    def baseline_sums(self, batch, unigram_log_probs_V):
        """Scores unigram frequencies; see `text_baseline_sums`."""
        return text_baseline_sums(self.name, *_targets(batch), unigram_log_probs_V)

    def head_flops(self, config, length, num_predictions):
        return length * language_model_head_flops(config)


def _targets(batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Returns the next token of each position and its weight; the last position has none."""
    following = ((0, 0), (0, 1))
    targets_BxL = jnp.pad(batch["input_ids"][:, 1:], following)
    weights_BxL = jnp.pad(batch["attention_mask"][:, 1:], following).astype(jnp.float32)
    return targets_BxL, weights_BxL * example_weights(batch)[:, None]
