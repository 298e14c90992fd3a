"""The losses of rankings: a query with candidate documents, each of which has a logit.

The formulas and the defaults are those of the cross-encoders of sentence-transformers. A loss takes
the logits, the labels or a teacher's scores, and a mask of the candidates that exist, each [B, C].
It returns terms and which of them count. The loss of a batch is their mean over the whole batch,
on all devices and in all chunks.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.task_models import Outputs
from bert_jax.objectives.objective import EXCLUDED, Batch, Metrics
from bert_jax.objectives.task_losses import TaskLoss

Terms = tuple[jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class RankingLoss(TaskLoss):
    """The mean of a loss over its terms in a batch; see `Objective`.

    A batch has "labels", float32 [B, C], which are a teacher's scores for some losses, and "mask",
    bool [B, C].

    Attributes:
      loss_name: A key of `LOSSES`.
      options: The arguments of that loss.
    """

    averaged = ("loss",)
    progress = {}

    loss_name: str = "bce"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def totals(self, batch: Batch) -> jax.Array:
        # Which terms count depends on the labels and the mask alone.
        _, counts = self._terms(jnp.zeros_like(batch["labels"]), batch)
        return jnp.maximum(jnp.sum(counts), 1)

    def sums(self, outputs: Outputs, batch: Batch) -> Metrics:
        terms, counts = self._terms(outputs["logits"], batch)
        return {"loss": jnp.sum(jnp.where(counts, terms, 0))}

    def _terms(self, logits_BxC: jax.Array, batch: Batch) -> Terms:
        return LOSSES[self.loss_name](logits_BxC, batch["labels"], batch["mask"], **self.options)


def bce(
    logits_BxC: jax.Array, labels_BxC: jax.Array, mask_BxC: jax.Array, *, pos_weight: float = 1.0
) -> Terms:
    """Binary cross-entropy of each pair, whose label is from 0 to 1."""
    positive_BxC = labels_BxC * jax.nn.softplus(-logits_BxC)
    negative_BxC = (1 - labels_BxC) * jax.nn.softplus(logits_BxC)
    return pos_weight * positive_BxC + negative_BxC, mask_BxC


def mse(logits_BxC: jax.Array, scores_BxC: jax.Array, mask_BxC: jax.Array) -> Terms:
    """Squared error of the logit of each pair."""
    return (logits_BxC - scores_BxC) ** 2, mask_BxC


def margin_mse(logits_BxC: jax.Array, scores_BxC: jax.Array, mask_BxC: jax.Array) -> Terms:
    """Squared error of the difference between the first candidate and each other one."""
    errors_BxC = logits_BxC - scores_BxC
    return (errors_BxC[:, :1] - errors_BxC) ** 2, mask_BxC & (jnp.arange(mask_BxC.shape[1]) > 0)


def softmax(logits_BxC: jax.Array, labels_BxC: jax.Array, mask_BxC: jax.Array) -> Terms:
    """Cross-entropy of the positive among the candidates; several share it by their labels."""
    labels_BxC = jnp.where(mask_BxC, labels_BxC, 0)
    total_Bx1 = jnp.sum(labels_BxC, axis=1, keepdims=True)
    shares_BxC = labels_BxC / jnp.where(total_Bx1 > 0, total_Bx1, 1)
    log_probs_BxC = jax.nn.log_softmax(jnp.where(mask_BxC, logits_BxC, EXCLUDED))
    return -jnp.sum(shares_BxC * log_probs_BxC, axis=1), total_Bx1[:, 0] > 0


def listnet(
    logits_BxC: jax.Array, labels_BxC: jax.Array, mask_BxC: jax.Array, *, temperature: float = 1.0
) -> Terms:
    """Cross-entropy of the distribution that the labels, or a teacher's scores, give.

    Its gradient is that of the KL divergence from a teacher (Cao et al. 2007, Hinton et al. 2015).
    """
    targets_BxC = jax.nn.softmax(jnp.where(mask_BxC, labels_BxC / temperature, EXCLUDED))
    return softmax(logits_BxC, targets_BxC, mask_BxC)


def ranknet(logits_BxC: jax.Array, labels_BxC: jax.Array, mask_BxC: jax.Array) -> Terms:
    """Each candidate should have a higher logit than all with a lower label (Burges et al. 2005).

    The terms are [B, C, C], for pairs of the higher and the lower one, in bits.
    """
    both_BxCxC = mask_BxC[:, :, None] & mask_BxC[:, None]
    is_higher_BxCxC = both_BxCxC & (labels_BxC[:, :, None] > labels_BxC[:, None])
    differences_BxCxC = logits_BxC[:, :, None] - logits_BxC[:, None]
    return jax.nn.softplus(-differences_BxCxC) / jnp.log(2.0), is_higher_BxCxC


def lambda_loss(
    logits_BxC: jax.Array, labels_BxC: jax.Array, mask_BxC: jax.Array, *, mu: float = 10.0
) -> Terms:
    """RankNet with pairs weighted by what they change in nDCG (Wang et al. 2018, NDCG-Loss2++).

    Args:
      mu: The weight of NDCG-Loss2 beside LambdaRank.
    """
    terms_BxCxC, is_higher_BxCxC = ranknet(logits_BxC, labels_BxC, mask_BxC)

    def discount(ranks: jax.Array) -> jax.Array:
        """Computes the factors of ranks, which count from 1."""
        return 1 / jnp.log2(1.0 + ranks)

    # Without a gradient, as all ranks.
    order_BxC = jnp.argsort(jnp.where(mask_BxC, -logits_BxC, -EXCLUDED), axis=1)
    ranks_BxC = 1 + jnp.argsort(order_BxC, axis=1)
    gains_BxC = jnp.where(mask_BxC, 2**labels_BxC - 1, 0)
    ideal_Bx1 = jnp.sum(
        -jnp.sort(-gains_BxC, axis=1) * discount(1 + jnp.arange(gains_BxC.shape[1])),
        axis=1,
        keepdims=True,
    )
    gains_BxC /= jnp.where(ideal_Bx1 > 0, ideal_Bx1, 1)
    distances_BxCxC = jnp.maximum(abs(ranks_BxC[:, :, None] - ranks_BxC[:, None]), 1)
    discounts_BxC = discount(ranks_BxC)
    weights_BxCxC = abs(gains_BxC[:, :, None] - gains_BxC[:, None]) * (
        mu * (discount(distances_BxCxC) - discount(distances_BxCxC + 1))
        + abs(discounts_BxC[:, :, None] - discounts_BxC[:, None])
    )
    return weights_BxCxC * terms_BxCxC, is_higher_BxCxC


LOSSES: dict[str, Callable[..., Terms]] = {
    "bce": bce,
    "softmax": softmax,
    "lambda": lambda_loss,
    "ranknet": ranknet,
    "listnet": listnet,
    "mse": mse,
    "margin_mse": margin_mse,
    "kl": listnet,
}
