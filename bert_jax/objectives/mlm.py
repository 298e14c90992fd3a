"""Masked language modelling (paper, section 3.1, task 1)."""

import jax
import jax.numpy as jnp

# Keeps the mean finite when a batch has no masked token (run_pretraining.py).
DENOMINATOR_EPSILON = 1e-5


def mlm_sums(
    logits_BxMxV: jax.Array, masked_lm_ids_BxM: jax.Array, masked_lm_weights_BxM: jax.Array
) -> dict[str, jax.Array]:
    """Cross-entropy of the masked tokens, summed.

    Args:
      logits_BxMxV: float32 scores of the vocabulary at each masked position.
      masked_lm_ids_BxM: int32, the token that stood there.
      masked_lm_weights_BxM: float32, 1 for a prediction, 0 for padding.

    Returns:
      float32 scalars: `loss` = sum(w * -log p), `correct` = sum(w * [no token scores
      higher]), `weight` = sum(w).
    """
    label_logits_BxM = jnp.take_along_axis(logits_BxMxV, masked_lm_ids_BxM[..., None], axis=-1)
    label_logits_BxM = label_logits_BxM[..., 0]
    losses_BxM = jax.nn.logsumexp(logits_BxMxV, axis=-1) - label_logits_BxM
    # A maximum is a cheaper reduction than an argmax, above all on a CPU.
    correct_BxM = label_logits_BxM >= jnp.max(logits_BxMxV, axis=-1)
    return {
        "loss": jnp.sum(masked_lm_weights_BxM * losses_BxM),
        "correct": jnp.sum(masked_lm_weights_BxM * correct_BxM),
        "weight": jnp.sum(masked_lm_weights_BxM),
    }
