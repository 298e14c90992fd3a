"""Builds the attention mask of a batch, once for all layers."""

import jax
import jax.numpy as jnp


def attention_bias(attention_mask_BxL: jax.Array, *, causal: bool = False) -> jax.Array:
    """Returns the bias that masks attention scores, float32 [B, 1, Q, L].

    The value is 0 where a query may attend to a key and the lowest finite float32 elsewhere.
    Q is 1 if only padding is masked, otherwise L.

    Args:
      attention_mask_BxL: 1 at real tokens, 0 at padding.
      causal: Each position attends only to itself and to the positions before it.
    """
    allowed_Bx1xQxL = attention_mask_BxL[:, None, None, :] > 0
    if causal:
        position_L = jnp.arange(attention_mask_BxL.shape[-1])
        allowed_Bx1xQxL &= position_L <= position_L[:, None]
    return jnp.where(allowed_Bx1xQxL, 0.0, jnp.finfo(jnp.float32).min)
