"""Multi-head attention (Vaswani et al. 2017, section 3.2)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models import fused_attention, gpu_attention
from bert_jax.models.bert_config import BertConfig
from bert_jax.models.dropout import Dropout
from bert_jax.models.layers import add_bias, weight_init, zeros_init

# The module of the attention kernel of each kind of device.
_KERNELS = {"tpu": fused_attention, "gpu": gpu_attention}


class SelfAttention(nn.Module):
    """Attention of every position to the positions that its mask allows, then a projection.

    Kernels are [D, A, K] and [A, K, D]: heads have their own axis, which tensor parallelism
    shards.
    """

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        hidden_BxLxD: jax.Array,
        bias_Bx1xQxL: jax.Array,
        deterministic: bool,
        ends_BxP: jax.Array | None = None,
        source_BxSxD: jax.Array | None = None,
    ) -> jax.Array:
        """Returns [B, L, D] in `config.dtype`.

        Args:
          hidden_BxLxD: The block's input.
          bias_Bx1xQxL: float32 from `attention_bias`; Q is 1 or L.
          deterministic: True turns off the dropout of probabilities.
          ends_BxP: int32 from `sequence_ends`, if the sequences of a row are all that the bias
            keeps apart.
          source_BxSxD: The states to attend to instead of the block's own, with a bias
            [B, 1, 1, S]: cross-attention.
        """
        c = self.config
        hidden_BxLxD = hidden_BxLxD.astype(c.dtype)
        # The kernels mask the same keys for all queries, or keep sequences apart.
        mask = bias_Bx1xQxL if bias_Bx1xQxL.shape[2] == 1 else ends_BxP
        fused = c.fused_attention and c.dtype == jnp.bfloat16 and mask is not None
        fused = fused and source_BxSxD is None
        if fused and _KERNELS[c.fused_attention].fits(c, hidden_BxLxD.shape[1]):
            return self._fused(hidden_BxLxD, mask, deterministic)

        keyed = hidden_BxLxD if source_BxSxD is None else source_BxSxD.astype(c.dtype)
        scale = jnp.asarray(c.head_depth**-0.5, c.dtype)
        query_BxAxLxK, key_BxAxLxK, value_BxAxLxK = (
            jnp.einsum("BLD,DAK->BALK", states, kernel_DxAxK.astype(c.dtype))
            + bias_AxK.astype(c.dtype)[:, None, :]
            for states, (kernel_DxAxK, bias_AxK) in zip(
                (hidden_BxLxD, keyed, keyed), self._projections(), strict=True
            )
        )
        scores_BxAxLxL = jnp.einsum(
            "BAQK,BALK->BAQL",
            query_BxAxLxK * scale,
            key_BxAxLxK,
            preferred_element_type=jnp.float32,
        )
        probs_BxAxLxL = jax.nn.softmax(scores_BxAxLxL + bias_Bx1xQxL).astype(c.dtype)
        # Costs nothing unless the caller makes "intermediates" mutable.
        self.sow("intermediates", "probabilities", probs_BxAxLxL)
        probs_BxAxLxL = Dropout(c.attention_probs_dropout_prob)(probs_BxAxLxL, deterministic)
        context_BxAxLxK = jnp.einsum("BAQL,BALK->BAQK", probs_BxAxLxL, value_BxAxLxK)
        kernel_AxKxD, bias_D = self._output_projection()
        output_BxLxD = jnp.einsum("BAQK,AKD->BQD", context_BxAxLxK, kernel_AxKxD.astype(c.dtype))
        return add_bias(output_BxLxD, bias_D)

    def _fused(self, hidden_BxLxD, mask, deterministic):
        """Computes attention with a kernel, which reads and writes heads side by side."""
        c = self.config
        heads_BxLxD = [
            add_bias(
                hidden_BxLxD @ kernel_DxAxK.reshape(c.hidden_size, -1).astype(c.dtype),
                bias_AxK.reshape(-1),
            )
            for kernel_DxAxK, bias_AxK in self._projections()
        ]
        shape = (hidden_BxLxD.shape[0], c.num_attention_heads)
        rate = 0.0 if deterministic else c.attention_probs_dropout_prob
        keys = Dropout(rate).keys(shape) if rate else (jnp.zeros(shape, jnp.int32),) * 2
        # The kernels take the bias as [B, 1, L].
        mask = mask[:, 0] if mask.ndim == 4 else mask
        context_BxLxD = _KERNELS[c.fused_attention].fused_attention(
            *heads_BxLxD, mask, keys, depth=c.head_depth, rate=rate
        )
        kernel_AxKxD, bias_D = self._output_projection()
        kernel_DxD = kernel_AxKxD.reshape(-1, c.hidden_size).astype(c.dtype)
        return add_bias(context_BxLxD @ kernel_DxD, bias_D)

    def _projections(self):
        """Yields kernel [D, A, K] and bias [A, K] of query, key and value, in this order."""
        c = self.config
        shape = (c.hidden_size, c.num_attention_heads, c.head_depth)
        for name in ("query", "key", "value"):
            kernel = self.param(f"{name}_kernel", weight_init(c, "embed", "heads", "depth"), shape)
            yield kernel, self.param(f"{name}_bias", zeros_init("heads", "depth"), shape[1:])

    def _output_projection(self):
        """Returns kernel [A, K, D] and bias [D]."""
        c = self.config
        shape = (c.num_attention_heads, c.head_depth, c.hidden_size)
        kernel = self.param("output_kernel", weight_init(c, "heads", "depth", "embed"), shape)
        return kernel, self.param("output_bias", zeros_init("embed"), (c.hidden_size,))


def attention_bias(
    attention_mask_BxL: jax.Array,
    *,
    causal: bool = False,
    window: int = 0,
    segment_ids_BxL: jax.Array | None = None,
) -> jax.Array:
    """Returns the bias that masks attention scores in all layers, float32 [B, 1, Q, L].

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


def sequence_ends(attention_mask_BxL: jax.Array, sequences_per_row: int) -> jax.Array:
    """Returns the position after each sequence of a row, int32 [B, P].

    If a row has fewer than P sequences, the others are empty and end where the last one does.

    Args:
      attention_mask_BxL: The number of its sequence at each token; see `Encoder`.
      sequences_per_row: P.
    """
    number_P = jnp.arange(1, sequences_per_row + 1)
    is_before_BxPxL = attention_mask_BxL[:, None] <= number_P[:, None]
    is_before_BxPxL &= attention_mask_BxL[:, None] > 0
    return jnp.sum(is_before_BxPxL, axis=-1, dtype=jnp.int32)
