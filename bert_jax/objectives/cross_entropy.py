"""Cross-entropy over the vocabulary without all logits in memory at once."""

import functools

import jax
import jax.numpy as jnp

from bert_jax.models.embeddings import vocabulary_logits

# Positions whose logits are in memory at once: 0.5 GB for 256 rows and a vocabulary of 30,522.
SLICE_POSITIONS = 16


def sliced_cross_entropy(
    hidden_BxLxD: jax.Array,
    table_WxD: jax.Array,
    bias_W: jax.Array,
    targets_BxL: jax.Array,
    weights_BxL: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns the sums of weight * -log p(target) and of weight * [target is the best guess].

    Logits are computed a few positions at a time, and again in the backward pass: the logits
    of 256 x 512 positions and 30,522 entries would take 16 GB.

    Args:
      hidden_BxLxD: The decoder's input.
      table_WxD: The word embeddings.
      bias_W: float32 bias of the decoder.
      targets_BxL: int32.
      weights_BxL: float32, 0 where nothing is predicted.
    """
    padding = -hidden_BxLxD.shape[1] % SLICE_POSITIONS

    def sliced(x: jax.Array) -> jax.Array:
        """[B, L, ...] -> [slices, B, SLICE_POSITIONS, ...]."""
        x = jnp.pad(x, [(0, 0), (0, padding), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(x.reshape(x.shape[0], -1, SLICE_POSITIONS, *x.shape[2:]), 1, 0)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def add_slice(sums, inputs):
        hidden_BxCxD, targets_BxC, weights_BxC = inputs
        logits_BxCxW = vocabulary_logits(hidden_BxCxD, table_WxD, bias_W)
        target_BxC = jnp.take_along_axis(logits_BxCxW, targets_BxC[..., None], axis=-1)[..., 0]
        losses_BxC = jax.nn.logsumexp(logits_BxCxW, axis=-1) - target_BxC
        correct_BxC = target_BxC >= jnp.max(logits_BxCxW, axis=-1)
        loss, correct = sums
        return (
            loss + jnp.sum(weights_BxC * losses_BxC),
            correct + jnp.sum(weights_BxC * correct_BxC),
        ), None

    zero = jnp.zeros((), jnp.float32)
    slices = tuple(map(sliced, (hidden_BxLxD, targets_BxL, weights_BxL)))
    sums, _ = jax.lax.scan(add_slice, (zero, zero), slices)
    return sums
