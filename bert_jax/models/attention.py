"""Multi-head self-attention (Vaswani et al. 2017, section 3.2)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.layers import weight_init, zeros_init


class SelfAttention(nn.Module):
    """Attention of every position to every unmasked one, and its output projection.

    Kernels are [D, A, K] and [A, K, D]: heads are an axis of their own, so that
    tensor parallelism splits between heads and nothing is reshaped.
    """

    config: BertConfig

    @nn.compact
    def __call__(
        self, hidden_BxLxD: jax.Array, mask_bias_Bx1x1xL: jax.Array, deterministic: bool
    ) -> jax.Array:
        """Returns [B, L, D] in `config.dtype`.

        Args:
          hidden_BxLxD: The block's input.
          mask_bias_Bx1x1xL: float32, 0 where a position may be attended to and
            the lowest finite number where not.
          deterministic: True turns the dropout of probabilities off.
        """
        c = self.config
        hidden_BxLxD = hidden_BxLxD.astype(c.dtype)
        query_BxAxLxK = self._heads("query", hidden_BxLxD) * jnp.asarray(
            c.head_depth**-0.5, c.dtype
        )
        key_BxAxLxK = self._heads("key", hidden_BxLxD)
        value_BxAxLxK = self._heads("value", hidden_BxLxD)

        scores_BxAxLxL = jnp.einsum(
            "BAQK,BALK->BAQL", query_BxAxLxK, key_BxAxLxK, preferred_element_type=jnp.float32
        )
        probs_BxAxLxL = jax.nn.softmax(scores_BxAxLxL + mask_bias_Bx1x1xL).astype(c.dtype)
        probs_BxAxLxL = nn.Dropout(c.attention_probs_dropout_prob)(
            probs_BxAxLxL, deterministic=deterministic
        )
        context_BxAxLxK = jnp.einsum("BAQL,BALK->BAQK", probs_BxAxLxL, value_BxAxLxK)

        shape = (c.num_attention_heads, c.head_depth, c.hidden_size)
        kernel = self.param("output_kernel", weight_init(c, "heads", "depth", "embed"), shape)
        bias = self.param("output_bias", zeros_init("embed"), (c.hidden_size,))
        output_BxLxD = jnp.einsum("BAQK,AKD->BQD", context_BxAxLxK, kernel.astype(c.dtype))
        return output_BxLxD + bias.astype(c.dtype)

    def _heads(self, name: str, hidden_BxLxD: jax.Array) -> jax.Array:
        c = self.config
        shape = (c.hidden_size, c.num_attention_heads, c.head_depth)
        kernel = self.param(f"{name}_kernel", weight_init(c, "embed", "heads", "depth"), shape)
        bias = self.param(f"{name}_bias", zeros_init("heads", "depth"), shape[1:])
        heads_BxAxLxK = jnp.einsum("BLD,DAK->BALK", hidden_BxLxD, kernel.astype(c.dtype))
        return heads_BxAxLxK + bias.astype(c.dtype)[:, None, :]
