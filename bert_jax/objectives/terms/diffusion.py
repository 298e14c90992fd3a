"""The loss of masked diffusion, which bounds the likelihood of the text.

The loss is that of Sahoo et al. 2024 (arXiv:2406.07524, equation 10) and Nie et al. 2025
(arXiv:2502.09992, equation 3). `batches.corruption.diffusion` draws the rates.
"""

import dataclasses
import math

import jax.numpy as jnp
from scipy.special import entr

from bert_jax.base.batch import DIFFUSION_FIELDS, HELD_OUT_RATES
from bert_jax.models.heads import LanguageModelHead
from bert_jax.objectives.cross_entropy import TextPrediction, sliced_cross_entropy
from bert_jax.objectives.language_model import language_model_head_flops, language_model_metrics
from bert_jax.objectives.term import Metric, example_weights, loss_and_accuracy


def _at_rates(index: int) -> Metric:
    """Declares the loss of the tokens that are masked at one of the ranges of rates."""
    low, high = (100 * end / HELD_OUT_RATES for end in (index, index + 1))
    label = f"loss with {low:g} to {high:g} % masked (nats)"
    name = f"diffusion_loss_rate_{index + 1}_of_{HELD_OUT_RATES}"
    middle = (low + high) / 2
    return Metric(name, label, "loss", in_training=False, percent_masked=middle)


@dataclasses.dataclass(frozen=True)
class MaskedDiffusion(TextPrediction):
    """Predicts the masked tokens of rows that are masked at all rates.

    The loss is the sum of -log p(token) / rate over the masked tokens, divided by the number of all
    tokens that may be masked. Its mean over rates and masks is an upper bound on -log p(text) per
    token. The accuracy has the same weights, so it is the mean over all rates.

    Each held-out row has `HELD_OUT_RATES` copies, one after another. The standard error is that of
    the mean over rows of text; it includes the noise of rates and masks.
    """

    name = "diffusion"
    label = "masked diffusion"
    fields = DIFFUSION_FIELDS
    metrics = (
        *language_model_metrics("diffusion", "masked-diffusion"),
        Metric(
            "diffusion_standard_error",
            "standard error of the masked-diffusion loss (nats)",
            "error",
            in_training=False,
        ),
        *map(_at_rates, range(HELD_OUT_RATES)),
    )

    def heads(self, config):
        return {"mlm": LanguageModelHead(config)}

    def total(self, batch):
        return jnp.maximum(jnp.sum(batch["mask_weights"] > 0), 1)

    def targets(self, batch):
        """Returns the original tokens, and 1 for each that may be masked."""
        may_BxL = (batch["mask_weights"] > 0).astype(jnp.float32)
        return batch["original_ids"], may_BxL * example_weights(batch)[:, None]

    def sums(self, outputs, batch, teacher=None):
        originals_BxL, counted_BxL = self.targets(batch)
        masked_BxL = counted_BxL * (batch["input_ids"] != originals_BxL)
        weights_BxL = masked_BxL * batch["mask_weights"]
        loss_B, correct_B = sliced_cross_entropy(outputs, originals_BxL, weights_BxL, axis=1)
        tokens_B = jnp.sum(counted_BxL, axis=1)
        totals = (jnp.sum(x) for x in (loss_B, correct_B, tokens_B))
        sums = loss_and_accuracy(self.name, *totals)
        if "example_weights" not in batch:
            return sums
        # All tokens of a row have its rate.
        rate_B = 1 / jnp.maximum(jnp.max(batch["mask_weights"], axis=1), 1)
        index_B = jnp.ceil(rate_B * HELD_OUT_RATES - 1e-4).astype(jnp.int32) - 1
        masked_B = jnp.sum(masked_BxL, axis=1)
        for i, metric in enumerate(self.metrics[-HELD_OUT_RATES:]):
            inside_B = index_B == i
            sums[metric.name] = jnp.sum(inside_B * loss_B * rate_B), jnp.sum(inside_B * masked_B)
        loss_N, tokens_N = (x.reshape(-1, HELD_OUT_RATES).sum(axis=1) for x in (loss_B, tokens_B))
        return sums | {
            "squares": (jnp.sum(loss_N**2), jnp.sum(tokens_N**2)),
            "products": (jnp.sum(loss_N * tokens_N), jnp.sum(tokens_N > 0)),
        }

    def baseline_sums(self, batch, unigram_log_probs_V):
        targets_BxL, weights_BxL = self.targets(batch)
        rare_BxL = unigram_log_probs_V[targets_BxL] == jnp.min(unigram_log_probs_V)
        rare = jnp.sum(weights_BxL * rare_BxL), jnp.sum(weights_BxL)
        return super().baseline_sums(batch, unigram_log_probs_V) | {"rare": rare}

    def results(self, sums):
        # The baseline has no loss for tokens that the training text lacks, such as the [SEP]s that
        # fill most of some rows. Added here is the entropy of whether a token is one of these.
        rare, total = sums["rare"]
        rare /= total or 1
        known = total * float(entr(rare) + entr(1 - rare))
        changed = {
            "unigram_diffusion_loss": (sums["unigram_diffusion_loss"][0] + known, total),
            "unigram_diffusion_accuracy": max(
                sums["unigram_diffusion_accuracy"], (rare * total, total)
            ),
        }
        results, (loss, tokens) = super().results({**sums, **changed}), sums["diffusion_loss"]
        (losses, squares), (products, num_rows) = sums["squares"], sums["products"]
        # The sum of (loss of a row - mean loss of a token * tokens of the row)^2.
        mean = loss / tokens if tokens else 0.0
        spread = max(0.0, losses - 2 * mean * products + mean**2 * squares)
        error = math.sqrt(spread * num_rows / max(1.0, num_rows - 1)) / max(1.0, tokens)
        return results | {"diffusion_standard_error": error}

    def head_flops(self, config, length, num_predictions):
        return length * language_model_head_flops(config)
