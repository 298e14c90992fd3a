"""BERT's two objectives at once: the losses of masked tokens and of next sentences, added."""

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.objectives.mlm import DENOMINATOR_EPSILON, mlm_sums
from bert_jax.objectives.nsp import nsp_sums
from bert_jax.objectives.objective import Batch, Metrics, apply


class PreTraining:
    """Total loss = MLM + NSP, unweighted; see `Objective`."""

    averaged = ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy")
    accuracies = {"mlm_accuracy": "MLM", "nsp_accuracy": "NSP"}
    eval_operands = 1

    def totals(self, batch: Batch) -> tuple[jax.Array, int]:
        """Weight of the masked tokens and number of sequences.

        Microbatches differ in their number of masked tokens: each one's loss is divided by
        the weight of the whole batch, so that the sum of gradients is the batch's.
        """
        return jnp.sum(batch["masked_lm_weights"]), batch["next_sentence_labels"].shape[0]

    def loss(
        self,
        model: Any,
        params: Any,
        batch: Batch,
        dropout_key: jax.Array,
        totals: tuple[jax.Array, int],
    ) -> tuple[jax.Array, Metrics]:
        mlm_weight, num_sequences = totals
        output = apply(model, params, batch, dropout_key)
        mlm = mlm_sums(output.mlm_logits_BxMxW, batch["masked_lm_ids"], batch["masked_lm_weights"])
        labels_B = batch["next_sentence_labels"]
        nsp = nsp_sums(output.nsp_logits_Bx2, labels_B, jnp.ones(labels_B.shape, jnp.float32))
        mlm_loss = mlm["loss"] / (mlm_weight + DENOMINATOR_EPSILON)
        nsp_loss = nsp["loss"] / num_sequences
        return mlm_loss + nsp_loss, {
            "loss": mlm_loss + nsp_loss,
            "mlm_loss": mlm_loss,
            "nsp_loss": nsp_loss,
            "mlm_accuracy": mlm["correct"] / (mlm_weight + DENOMINATOR_EPSILON),
            "nsp_accuracy": nsp["correct"] / num_sequences,
        }

    def evaluate(
        self, model: Any, params: Any, batch: Batch, unigram_log_probs_V: jax.Array
    ) -> Metrics:
        """Sums over the batch.

        The batch has `example_weights` [B] float32, 0 for rows that only fill it up.
        The unigram baseline is judged on the very same masked tokens: its loss is
        -log p(token), its one guess the most frequent token. `random_next` counts the
        pairs whose B is random, for the baseline of always guessing the commoner label.
        """
        output = apply(model, params, batch)
        row_weights_B = batch["example_weights"]
        weights_BxM = batch["masked_lm_weights"] * row_weights_B[:, None]
        labels_BxM = batch["masked_lm_ids"]
        mlm = mlm_sums(output.mlm_logits_BxMxW, labels_BxM, weights_BxM)
        nsp = nsp_sums(output.nsp_logits_Bx2, batch["next_sentence_labels"], row_weights_B)
        guess = jnp.argmax(unigram_log_probs_V)
        return {
            "mlm_loss": mlm["loss"],
            "mlm_correct": mlm["correct"],
            "mlm_weight": mlm["weight"],
            "nsp_loss": nsp["loss"],
            "nsp_correct": nsp["correct"],
            "num_sequences": nsp["weight"],
            "random_next": jnp.sum(row_weights_B * batch["next_sentence_labels"]),
            "unigram_mlm_loss": -jnp.sum(weights_BxM * unigram_log_probs_V[labels_BxM]),
            "unigram_mlm_correct": jnp.sum(weights_BxM * (labels_BxM == guess)),
        }
