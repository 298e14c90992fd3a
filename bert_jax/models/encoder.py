"""The stack of Transformer blocks."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from bert_jax.models.attention import (
    AttentionMask,
    SelfAttention,
    attends_in_parts,
    attention_bias,
    sequence_ends,
)
from bert_jax.models.bert_config import BertConfig
from bert_jax.models.dropout import Dropout
from bert_jax.models.layers import ACTIVATIONS, LayerNorm, Projection, stored
from bert_jax.models.on_devices import on_each_device

# The logical axes of hidden states.
_ROWS = ("batch", None, None)


class TransformerBlock(nn.Module):
    """Attention, then feed-forward; LayerNorm where `config.norm` says.

    The parameters have the same names for all positions of LayerNorm. A block of a decoder is
    called with the encoder's output, to which it attends in between; it is post-LN.

    Attributes:
      layer: The number of the block, or of its group.
    """

    config: BertConfig
    deterministic: bool
    layer: int = 0

    @nn.compact
    def __call__(
        self,
        hidden_BxLxD: jax.Array,
        mask: AttentionMask,
        source_BxSxD: jax.Array | None = None,
        source_mask: AttentionMask | None = None,
        states_BxSxD: jax.Array | None = None,
    ) -> jax.Array:
        """Returns hidden_BxLxD.

        Args:
          source_BxSxD, source_mask: The encoder's output and its mask, in a decoder.
          states_BxSxD: The states that the first attention reads instead of the block's own.
        """
        c = self.config

        def dropout(x, rate):
            return Dropout(rate)(x, self.deterministic)

        def scaled(x):
            if not c.residual_depth:
                return x
            return x * jnp.asarray((c.residual_depth / c.num_hidden_layers) ** 0.5, x.dtype)

        attention_rate = c.attention_output_dropout_prob
        if attention_rate < 0:
            attention_rate = c.hidden_dropout_prob
        attention_norm = LayerNorm(c, name="attention_layer_norm")
        output_norm = LayerNorm(c, name="output_layer_norm")
        is_pre = c.norm != "post"
        # The first input of a ModernBERT is the output of the embeddings' LayerNorm.
        is_normalized = not is_pre or (c.norm == "pre_and_final" and self.layer == 0)

        attended_BxLxD = SelfAttention(c, c.is_local(self.layer), name="attention")(
            hidden_BxLxD if is_normalized else attention_norm(hidden_BxLxD),
            mask,
            self.deterministic,
            states_BxSxD,
        )
        hidden_BxLxD = hidden_BxLxD + scaled(dropout(attended_BxLxD, attention_rate))
        if not is_pre:
            hidden_BxLxD = attention_norm(hidden_BxLxD)
        if source_BxSxD is not None:
            attended_BxLxD = SelfAttention(c, name="cross_attention")(
                hidden_BxLxD, source_mask, self.deterministic, source_BxSxD
            )
            hidden_BxLxD = LayerNorm(c, name="cross_attention_layer_norm")(
                hidden_BxLxD + dropout(attended_BxLxD, attention_rate)
            )

        def inner(name):
            projection = Projection(
                c, c.intermediate_size, ("embed", "mlp"), activated=True, part="inner", name=name
            )
            inner_BxLxF = projection(input_BxLxD)
            return nn.with_logical_constraint(inner_BxLxF, ("batch", None, "activation_mlp"))

        input_BxLxD = output_norm(hidden_BxLxD) if is_pre else hidden_BxLxD
        inner_BxLxF = ACTIVATIONS[c.hidden_act](inner("intermediate"))
        if c.gated:
            inner_BxLxF *= inner("gate")
        if c.stores_activations:
            inner_BxLxF = stored(inner_BxLxF)
        output_BxLxD = Projection(
            c, c.hidden_size, ("mlp", "embed"), is_output=True, part="output", name="output"
        )(inner_BxLxF)
        output_BxLxD = nn.with_logical_constraint(output_BxLxD, ("batch", None, None))
        hidden_BxLxD = hidden_BxLxD + scaled(dropout(output_BxLxD, c.hidden_dropout_prob))
        return hidden_BxLxD if is_pre else output_norm(hidden_BxLxD)


class Encoder(nn.Module):
    """`num_hidden_layers` blocks, one after another.

    If `config.layer_groups` is set, the blocks of a group share their parameters (ALBERT, Lan et
    al. 2020, section 3.1).
    """

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        hidden_BxLxD: jax.Array,
        attention_mask_BxL: jax.Array,
        deterministic: bool,
        all_layers: bool = False,
        sequences_per_row: int = 1,
    ) -> jax.Array | list[jax.Array]:
        """Returns the last block's output, [B, L, D] in `config.dtype`.

        Args:
          attention_mask_BxL: int32, 1 at real tokens, 0 at padding. If several sequences share a
            row, the number of its sequence at each token; the numbers ascend from 1, and padding
            is at the end of the row. Tokens attend only to tokens of their own sequence.
          all_layers: Whether to return a list of the outputs of all blocks.
          sequences_per_row: The largest number in `attention_mask_BxL`.
        """
        c = self.config
        length = attention_mask_BxL.shape[1]
        # Slices have no array of probabilities for a caller that wants to see them.
        in_parts = attends_in_parts(c, length) and not self.is_mutable_collection("intermediates")
        mask, local_mask = (
            _mask(c, attention_mask_BxL, sequences_per_row, window, in_parts)
            for window in (None, c.window)
        )
        outputs = []
        block = rematerialized(TransformerBlock, c.remat)
        blocks = [block(c, deterministic, g, name=f"layer_{g}") for g in range(c.num_groups)]
        for i in range(c.num_hidden_layers):
            group = c.group_of(i)
            seen = local_mask if c.is_local(group) else mask
            hidden_BxLxD = blocks[group](hidden_BxLxD, seen)
            outputs.append(hidden_BxLxD)
        if c.has_final_norm:
            final_norm = LayerNorm(c, c.has_biases("final_norm"), name="layer_norm")
            outputs[-1] = final_norm(hidden_BxLxD)
        if c.fused_attention == "gpu":
            outputs[-1] = _in_rows(outputs[-1])
        return outputs if all_layers else outputs[-1]


def _in_rows(hidden_BxLxD: jax.Array) -> jax.Array:
    """Has the compiler for GPUs keep the last axis of the states contiguous.

    For the pooler's product, which reads one token of each row, it would make the first axis of all
    states contiguous, in all layers, and transpose them before and after each product.
    """
    layout = Layout(tuple(range(hidden_BxLxD.ndim)))
    # Otherwise each device would get the states of all rows.
    (hidden_BxLxD,) = on_each_device(
        lambda x: (with_layout_constraint(x, layout),), [hidden_BxLxD], [_ROWS], [_ROWS]
    )
    return hidden_BxLxD


def _mask(
    config: BertConfig,
    attention_mask_BxL: jax.Array,
    sequences_per_row: int,
    window: int | None,
    in_parts: bool,
) -> AttentionMask:
    """Makes the mask of all layers with some window, or with none."""
    is_shared = sequences_per_row > 1
    bias = None
    if not in_parts:
        bias = attention_bias(
            attention_mask_BxL,
            causal=config.causal,
            window=window,
            segment_ids_BxL=attention_mask_BxL if is_shared else None,
        )
    ends = None
    if is_shared and not config.causal and window is None:
        ends = sequence_ends(attention_mask_BxL, sequences_per_row)
    return AttentionMask(bias, ends, attention_mask_BxL)


def rematerialized(block: type[nn.Module], policy: str) -> type[nn.Module]:
    """Makes the class of a block that follows `config.remat`."""
    if policy == "none":
        return block
    keep = {"full": None, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}
    return nn.remat(block, policy=keep[policy])
