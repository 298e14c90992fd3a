"""Next sentence prediction (paper, section 3.1, task 2)."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.batch import NEXT_SENTENCE_FIELDS
from bert_jax.models.heads import OutputLayer
from bert_jax.objectives.term import Metric, Term, example_weights


@dataclasses.dataclass(frozen=True)
class NextSentence(Term):
    """Predicts whether segment B follows segment A (label 0) or is random (label 1)."""

    name = "nsp"
    label = "next sentence"
    fields = NEXT_SENTENCE_FIELDS
    metrics = (
        Metric("nsp_loss", "next-sentence loss (nats)", "loss"),
        Metric(
            "nsp_accuracy",
            "next-sentence accuracy",
            "accuracy",
            baseline="majority_nsp_accuracy",
            baseline_label="the more common label",
            in_progress=True,
        ),
    )
    needs_pooler = True

    def heads(self, config):
        return {"nsp": OutputLayer(config, 2)}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns logits_Bx2, float32."""
        return model.nsp(pooled_BxD)

    def total(self, batch):
        return batch["next_sentence_labels"].shape[0]

    def sums(self, logits_Bx2, batch, teacher=None):
        labels_B = batch["next_sentence_labels"]
        weights_B = example_weights(batch)
        log_probs_Bx2 = jax.nn.log_softmax(logits_Bx2)
        losses_B = -jnp.take_along_axis(log_probs_Bx2, labels_B[:, None], axis=-1)[:, 0]
        correct_B = jnp.argmax(logits_Bx2, axis=-1) == labels_B
        return {
            "loss": jnp.sum(weights_B * losses_B),
            "accuracy": jnp.sum(weights_B * correct_B),
            "weight": jnp.sum(weights_B),
        }

    def baseline_sums(self, batch, unigram_log_probs_V):
        return {"random": jnp.sum(example_weights(batch) * batch["next_sentence_labels"])}

    def results(self, sums):
        weight = max(sums["weight"], 1.0)
        random_share = sums["random"] / weight
        return {
            "nsp_loss": sums["loss"] / weight,
            "nsp_accuracy": sums["accuracy"] / weight,
            "majority_nsp_accuracy": max(random_share, 1 - random_share),
        }

    def head_flops(self, config, length, num_predictions):
        # Only the pooler counts; the product for two classes is negligible.
        return 2 * config.hidden_size**2
