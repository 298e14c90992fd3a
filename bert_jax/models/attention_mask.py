"""Builds the attention mask of a batch, once for all layers."""

import jax
import jax.numpy as jnp


def attention_bias(
    attention_mask_BxL: jax.Array,
    *,
    causal: bool = False,
    window: int = 0,
    segment_ids_BxL: jax.Array | None = None,
) -> jax.Array:
    """Returns the bias that masks attention scores, float32 [B, 1, Q, L].

    The value is 0 where a query may attend to a key and the lowest finite float32 elsewhere.
    Q is 1 if only padding is masked, otherwise L.

    Args:
      attention_mask_BxL: 1 at real tokens, 0 at padding.
      causal: Each position attends only to itself and to the positions before it.
      window: If above 0, position i attends only to positions j with |i - j| <= window.
      segment_ids_BxL: If given, tokens attend only to tokens with the same number. Several texts
        can then share a row.
    """
    length = attention_mask_BxL.shape[-1]
    allowed_Bx1xQxL = attention_mask_BxL[:, None, None, :] > 0
    position_L = jnp.arange(length)
    distance_LxL = position_L[:, None] - position_L
    if causal:
        allowed_Bx1xQxL &= distance_LxL >= 0
    if window:
        allowed_Bx1xQxL &= jnp.abs(distance_LxL) <= window
    if segment_ids_BxL is not None:
        allowed_Bx1xQxL &= (segment_ids_BxL[:, :, None] == segment_ids_BxL[:, None, :])[:, None]
    return jnp.where(allowed_Bx1xQxL, 0.0, jnp.finfo(jnp.float32).min)
