"""The decoder of BART (Lewis et al. 2020): causal self-attention and attention to the encoder."""

import flax.linen as nn
import jax

from bert_jax.models.attention import AttentionMask, attention_bias
from bert_jax.models.bert_config import BertConfig
from bert_jax.models.dropout import Dropout
from bert_jax.models.encoder import TransformerBlock, rematerialized
from bert_jax.models.input_embeddings import embedded_rows, position_init
from bert_jax.models.layers import LayerNorm


class Decoder(nn.Module):
    """Embeddings with positions of their own, and `num_decoder_layers` blocks.

    `SelfAttention` and `TransformerBlock` are those of the encoder; a block also attends to its
    output. As in the encoder, LayerNorm follows the embeddings and each residual sum.
    """

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        input_ids_BxT: jax.Array,
        attention_mask_BxT: jax.Array,
        source_BxLxD: jax.Array,
        source_mask_BxL: jax.Array,
        table_WxE: jax.Array,
        deterministic: bool,
    ) -> jax.Array:
        """Returns hidden_BxTxD in `config.dtype`.

        Args:
          input_ids_BxT: int32; position t sees the inputs up to t.
          attention_mask_BxT: int32, 0 at padding.
          source_BxLxD, source_mask_BxL: The encoder's output and its mask.
          table_WxE: The word embeddings, which encoder and decoder share.
        """
        c = self.config
        positions = self.param(
            "position_embeddings", position_init(c), (c.max_position_embeddings, c.hidden_size)
        )
        hidden_BxTxD = embedded_rows(table_WxE, input_ids_BxT)
        hidden_BxTxD += positions[None, : input_ids_BxT.shape[1]]
        hidden_BxTxD = nn.with_logical_constraint(hidden_BxTxD, ("batch", None, None))
        hidden_BxTxD = LayerNorm(c, name="layer_norm")(hidden_BxTxD)
        hidden_BxTxD = Dropout(c.hidden_dropout_prob)(hidden_BxTxD, deterministic)
        mask = AttentionMask(attention_bias(attention_mask_BxT, causal=True))
        source = source_BxLxD, AttentionMask(attention_bias(source_mask_BxL))
        block = rematerialized(TransformerBlock, c.remat)
        for i in range(c.num_decoder_layers):
            hidden_BxTxD = block(c, deterministic, name=f"layer_{i}")(hidden_BxTxD, mask, *source)
        return hidden_BxTxD
