"""Multi-head attention (Vaswani et al. 2017, section 3.2), in one of five ways.

* `tpu_attention`, `gpu_attention`: kernels of ours for bfloat16, with dropout inside. They compute
  what fits them (`fits`) on the device that `config.fused_attention` names.
* `splash_attention`: JAX's kernel for TPUs, for rows longer than 512 in bfloat16, without dropout.
* `sliced_attention`: all other rows longer than 512 of models with rotary positions.
* `SelfAttention._whole`: everything else, with all scores of a row in memory.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models import gpu_attention, splash_attention, tpu_attention
from bert_jax.models.bert_config import BertConfig
from bert_jax.models.dropout import Dropout
from bert_jax.models.layers import LayerNorm, add_bias, matrix_init, zeros_init
from bert_jax.models.rope import rotate
from bert_jax.models.sliced_attention import sliced_attention

# The module of the attention kernel of each kind of device.
_KERNELS = {"tpu": tpu_attention, "gpu": gpu_attention}
# Rows up to this length have all their scores in memory at once.
_MAX_WHOLE_LENGTH = 512


class AttentionMask(NamedTuple):
    """Which positions a query may attend to, in each of the forms that attention reads.

    Attributes:
      bias_Bx1xQxL: float32 from `attention_bias`; Q is 1 or L. It includes the window. None if
        attention is computed in parts.
      ends_BxP: int32 from `sequence_ends`, if the sequences of a row are all that the bias keeps
        apart. The kernel for TPUs reads it.
      numbers_BxL: int32, the number of its sequence at each token, 0 at padding. The kernel for
        GPUs reads it instead of the bias, and so does attention in parts.
    """

    bias_Bx1xQxL: jax.Array | None
    ends_BxP: jax.Array | None = None
    numbers_BxL: jax.Array | None = None


class SelfAttention(nn.Module):
    """Attention of every position to the positions that its mask allows, then a projection.

    Kernels are [D, A, K] and [A, K, D]: heads have their own axis, which tensor parallelism
    shards.

    Attributes:
      is_local: Whether a position attends only to those in a window around it.
    """

    config: BertConfig
    is_local: bool = False

    @nn.compact
    def __call__(
        self,
        hidden_BxLxD: jax.Array,
        mask: AttentionMask,
        deterministic: bool,
        source_BxSxD: jax.Array | None = None,
    ) -> jax.Array:
        """Returns [B, L, D] in `config.dtype`.

        Args:
          deterministic: True turns off the dropout of probabilities.
          source_BxSxD: The states to attend to instead of the block's own, with a bias
            [B, 1, 1, S]: cross-attention.
        """
        c = self.config
        hidden_BxLxD = hidden_BxLxD.astype(c.dtype)
        bias_Bx1xQxL = mask.bias_Bx1xQxL
        # The kernel for TPUs masks the same keys for all queries, or keeps sequences apart.
        is_for_all = bias_Bx1xQxL is not None and bias_Bx1xQxL.shape[2] == 1
        kernel_mask = bias_Bx1xQxL if is_for_all else mask.ends_BxP
        if c.fused_attention == "gpu":
            kernel_mask = None if c.causal else mask.numbers_BxL
        fused = c.fused_attention and c.dtype == jnp.bfloat16 and kernel_mask is not None
        fused = fused and source_BxSxD is None
        if fused and _KERNELS[c.fused_attention].fits(c, hidden_BxLxD.shape[1]):
            return self._fused(hidden_BxLxD, kernel_mask, deterministic)

        keyed = hidden_BxLxD if source_BxSxD is None else source_BxSxD.astype(c.dtype)
        query_BxAxLxK, key_BxAxLxK, value_BxAxLxK = (
            jnp.einsum("BLD,DAK->BALK", states, kernel_DxAxK.astype(c.dtype))
            + (0 if bias_AxK is None else bias_AxK.astype(c.dtype)[:, None, :])
            for states, (kernel_DxAxK, bias_AxK) in zip(
                (hidden_BxLxD, keyed, keyed), self._projections(), strict=True
            )
        )
        if c.qk_norm:
            query_BxAxLxK = self._normalized("query", query_BxAxLxK)
            key_BxAxLxK = self._normalized("key", key_BxAxLxK)
        if c.rope_theta:
            angles = c.theta(self.is_local), c.rope_scale, c.rope_dtype
            query_BxAxLxK = rotate(query_BxAxLxK, *angles)
            key_BxAxLxK = rotate(key_BxAxLxK, *angles)
        query_BxAxLxK *= jnp.asarray(c.head_depth**-0.5, c.dtype)
        key_BxAxLxK, value_BxAxLxK = self._repeat(key_BxAxLxK, 1), self._repeat(value_BxAxLxK, 1)
        heads = query_BxAxLxK, key_BxAxLxK, value_BxAxLxK
        rate = 0.0 if deterministic else c.attention_probs_dropout_prob
        if bias_Bx1xQxL is None:
            context_BxAxLxK = self._in_parts(heads, mask.numbers_BxL, rate)
        else:
            context_BxAxLxK = self._whole(heads, bias_Bx1xQxL, rate)
        kernel_AxKxD, bias_D = self._output_projection()
        output_BxLxD = jnp.einsum("BAQK,AKD->BQD", context_BxAxLxK, kernel_AxKxD.astype(c.dtype))
        return output_BxLxD if bias_D is None else add_bias(output_BxLxD, bias_D)

    def _whole(self, heads, bias_Bx1xQxL, rate):
        """Computes attention with all scores in memory."""
        query_BxAxLxK, key_BxAxLxK, value_BxAxLxK = heads
        scores_BxAxLxL = jnp.einsum(
            "BAQK,BALK->BAQL", query_BxAxLxK, key_BxAxLxK, preferred_element_type=jnp.float32
        )
        probs_BxAxLxL = jax.nn.softmax(scores_BxAxLxL + bias_Bx1xQxL).astype(self.config.dtype)
        if self.is_local:
            # Where the whole window is padding, the result is 0, as in PyTorch. The [MASK]s that
            # expand a query may be there.
            sees_Bx1xQx1 = jnp.any(bias_Bx1xQxL == 0, axis=-1, keepdims=True)
            probs_BxAxLxL = jnp.where(sees_Bx1xQx1, probs_BxAxLxL, 0)
        # Costs nothing unless the caller makes "intermediates" mutable.
        self.sow("intermediates", "probabilities", probs_BxAxLxL)
        probs_BxAxLxL = Dropout(rate)(probs_BxAxLxL, deterministic=False)
        return jnp.einsum("BAQL,BALK->BAQK", probs_BxAxLxL, value_BxAxLxK)

    def _in_parts(self, heads, numbers_BxL, rate):
        """Computes attention in long rows: on TPUs without dropout with JAX's kernel."""
        c = self.config
        window = c.window if self.is_local else None
        is_tpu = c.fused_attention == "tpu" and c.dtype == jnp.bfloat16
        if is_tpu and not rate and not c.causal and splash_attention.fits(c, numbers_BxL.shape[1]):
            return splash_attention.attention(*heads, numbers_BxL, window=window)
        return sliced_attention(
            *heads, numbers_BxL, window=window, causal=c.causal, dropout=Dropout(rate)
        )

    def _fused(self, hidden_BxLxD, mask, deterministic):
        """Computes attention with a kernel, which reads and writes heads side by side."""
        c = self.config
        is_plain = not c.rope_theta and not c.qk_norm
        if c.joins_heads and is_plain and c.key_value_heads == c.num_attention_heads:
            heads = (self._joined_heads(hidden_BxLxD),)
        else:
            heads = self._heads(hidden_BxLxD)
        shape = (hidden_BxLxD.shape[0], c.num_attention_heads)
        rate = 0.0 if deterministic else c.attention_probs_dropout_prob
        keys = Dropout(rate).keys(shape) if rate else (jnp.zeros(shape, jnp.int32),) * 2
        # The kernels take the bias as [B, 1, L].
        mask = mask[:, 0] if mask.ndim == 4 else mask
        options = {"window": c.window} if self.is_local else {}
        inputs = heads if c.fused_attention == "gpu" else (heads,)
        context_BxLxD = _KERNELS[c.fused_attention].fused_attention(
            *inputs, mask, keys, depth=c.head_depth, rate=rate, **options
        )
        kernel_AxKxD, bias_D = self._output_projection()
        output_BxLxD = context_BxLxD @ kernel_AxKxD.reshape(-1, c.hidden_size).astype(c.dtype)
        return output_BxLxD if bias_D is None else add_bias(output_BxLxD, bias_D)

    def _heads(self, hidden_BxLxD: jax.Array) -> tuple[jax.Array, ...]:
        """Returns queries, keys and values, each [B, L, A*K]."""
        c = self.config
        heads_BxLxF = []
        for kernel_DxAxK, bias_AxK in self._projections():
            product = hidden_BxLxD @ kernel_DxAxK.reshape(c.hidden_size, -1).astype(c.dtype)
            if bias_AxK is not None:
                product = add_bias(product, bias_AxK.reshape(-1))
            heads_BxLxF.append(product)
        if c.qk_norm:
            for i, name in enumerate(("query", "key")):
                heads_BxLxF[i] = self._norm(name)(heads_BxLxF[i])
        if c.rope_theta:
            heads_BxLxF[:2] = [self._rotated(x_BxLxF) for x_BxLxF in heads_BxLxF[:2]]
        return tuple(self._repeat_side_by_side(x_BxLxF) for x_BxLxF in heads_BxLxF)

    def _joined_heads(self, hidden_BxLxD: jax.Array) -> jax.Array:
        """Returns queries, keys and values, [3, B, L, A*K], as one product.

        On TPUs, the gradient of the states is one product, too. Three would each read and write
        their sum.
        """
        c = self.config
        kernels, biases = zip(*self._projections(), strict=True)
        kernel_3xDxF = jnp.stack([x.reshape(c.hidden_size, -1).astype(c.dtype) for x in kernels])
        heads_3xBxLxF = jnp.einsum("BLD,NDF->NBLF", hidden_BxLxD, kernel_3xDxF)
        if biases[0] is None:
            return heads_3xBxLxF
        return jax.vmap(add_bias)(heads_3xBxLxF, jnp.stack([x.reshape(-1) for x in biases]))

    def _rotated(self, x_BxLxD: jax.Array) -> jax.Array:
        """Rotates queries or keys whose heads lie side by side."""
        c = self.config
        x_BxLxAxK = x_BxLxD.reshape(*x_BxLxD.shape[:2], -1, c.head_depth)
        angles = c.theta(self.is_local), c.rope_scale, c.rope_dtype
        x_BxAxLxK = rotate(x_BxLxAxK.swapaxes(1, 2), *angles)
        return x_BxAxLxK.swapaxes(1, 2).reshape(x_BxLxD.shape)

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(self.config, has_bias=False, name=f"{name}_layer_norm")

    def _normalized(self, name: str, x_BxAxLxK: jax.Array) -> jax.Array:
        """Applies the LayerNorm of queries or keys, which is over all heads."""
        x_BxLxAxK = x_BxAxLxK.swapaxes(1, 2)
        x_BxLxD = self._norm(name)(x_BxLxAxK.reshape(*x_BxLxAxK.shape[:2], -1))
        return x_BxLxD.reshape(x_BxLxAxK.shape).swapaxes(1, 2)

    def _repeat(self, x: jax.Array, axis: int) -> jax.Array:
        """Repeats the heads of keys or values for the heads of queries that share them."""
        repeats = self.config.num_attention_heads // x.shape[axis]
        return x if repeats == 1 else jnp.repeat(x, repeats, axis)

    def _repeat_side_by_side(self, x_BxLxD: jax.Array) -> jax.Array:
        """Repeats the heads of keys or values where heads lie side by side; see `_repeat`."""
        x_BxLxAxK = x_BxLxD.reshape(*x_BxLxD.shape[:2], -1, self.config.head_depth)
        return self._repeat(x_BxLxAxK, 2).reshape(*x_BxLxD.shape[:2], -1)

    def _projections(self):
        """Yields kernel [D, A, K] and bias [A, K] or None: of query, key and value, in turn.

        Heads that several share are on each device: their number need not be a multiple of the
        devices that divide the others.
        """
        c = self.config
        for name in ("query", "key", "value"):
            heads, axis = c.num_attention_heads, "heads"
            if name != "query" and c.key_value_heads < heads:
                heads, axis = c.key_value_heads, "shared_heads"
            shape = (c.hidden_size, heads, c.head_depth)
            kernel = self.param(f"{name}_kernel", matrix_init(c, "embed", axis, "depth"), shape)
            bias = None
            if c.has_biases("attention"):
                bias = self.param(f"{name}_bias", zeros_init(axis, "depth"), shape[1:])
            yield kernel, bias

    def _output_projection(self):
        """Returns kernel [A, K, D] and bias [D] or None."""
        c = self.config
        shape = (c.num_attention_heads, c.head_depth, c.hidden_size)
        init = matrix_init(c, "heads", "depth", "embed", inputs=(0, 1), is_output=True)
        kernel = self.param("output_kernel", init, shape)
        if not c.has_biases("attention"):
            return kernel, None
        return kernel, self.param("output_bias", zeros_init("embed"), (c.hidden_size,))


def attends_in_parts(config: BertConfig, length: int) -> bool:
    """Returns whether the scores of a row of this length are never all in memory.

    Only models with rotary positions are made for such rows.
    """
    return config.rope_theta > 0 and length > _MAX_WHOLE_LENGTH


def attention_bias(
    attention_mask_BxL: jax.Array,
    *,
    causal: bool = False,
    window: int | None = None,
    segment_ids_BxL: jax.Array | None = None,
) -> jax.Array:
    """Returns the bias that masks attention scores in all layers, float32 [B, 1, Q, L].

    The value is 0 where a query may attend to a key and the lowest finite float32 elsewhere.
    Q is 1 if only padding is masked, otherwise L.

    Args:
      attention_mask_BxL: 1 at real tokens, 0 at padding.
      causal: Each position attends only to itself and to the positions before it.
      window: If not None, position i attends only to positions j with |i - j| <= window.
      segment_ids_BxL: If given, tokens attend only to tokens with the same number. Several texts
        can then share a row.
    """
    length = attention_mask_BxL.shape[-1]
    allowed_Bx1xQxL = attention_mask_BxL[:, None, None, :] > 0
    position_L = jnp.arange(length)
    distance_LxL = position_L[:, None] - position_L
    if causal:
        allowed_Bx1xQxL &= distance_LxL >= 0
    if window is not None:
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
