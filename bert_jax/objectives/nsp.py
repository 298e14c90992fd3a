"""Next sentence prediction (paper, section 3.1, task 2)."""

import jax
import jax.numpy as jnp


def nsp_sums(
    logits_Bx2: jax.Array, next_sentence_labels_B: jax.Array, weights_B: jax.Array
) -> dict[str, jax.Array]:
    """Cross-entropy of the next-sentence label, summed.

    Args:
      logits_Bx2: float32 scores of "is next" (0) and "random" (1).
      next_sentence_labels_B: int32.
      weights_B: float32, 0 for rows that only fill up a batch.

    Returns:
      float32 scalars `loss`, `correct` and `weight`, as `mlm_sums` has them.
    """
    log_probs_Bx2 = jax.nn.log_softmax(logits_Bx2)
    losses_B = -jnp.take_along_axis(log_probs_Bx2, next_sentence_labels_B[:, None], axis=-1)[:, 0]
    correct_B = jnp.argmax(logits_Bx2, axis=-1) == next_sentence_labels_B
    return {
        "loss": jnp.sum(weights_B * losses_B),
        "correct": jnp.sum(weights_B * correct_B),
        "weight": jnp.sum(weights_B),
    }
