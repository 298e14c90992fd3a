"""RetroMAE's decoder, which rebuilds a text from one vector (Xiao et al. 2022, section 3.2)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.attention import AttentionMask
from bert_jax.models.bert_config import BertConfig
from bert_jax.models.encoder import TransformerBlock


class RetroMaeDecoder(nn.Module):
    """One block of BERT, in which each position sees a set of tokens of its own.

    The queries, to which attention is added, are the position embeddings plus the vector of the
    text. The keys and values are that vector in place of [CLS], then the embeddings of the tokens.
    """

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        sentence_BxD: jax.Array,
        embedded_BxLxD: jax.Array,
        positions_LxD: jax.Array,
        visible_BxLxL: jax.Array,
        deterministic: bool,
    ) -> jax.Array:
        """Returns hidden_BxLxD in `config.dtype`.

        Args:
          sentence_BxD: The vector of each text.
          embedded_BxLxD: The output of the embeddings for the original tokens.
          positions_LxD: The position embeddings, without LayerNorm.
          visible_BxLxL: bool, the tokens (last axis) that each position sees.
        """
        sentence_Bx1xD = sentence_BxD[:, None].astype(self.config.dtype)
        states_BxLxD = jnp.concatenate([sentence_Bx1xD, embedded_BxLxD[:, 1:]], axis=1)
        query_BxLxD = (positions_LxD + sentence_Bx1xD).astype(self.config.dtype)
        bias_Bx1xLxL = jnp.where(visible_BxLxL[:, None], 0.0, jnp.finfo(jnp.float32).min)
        block = TransformerBlock(self.config, deterministic, name="layer")
        return block(query_BxLxD, AttentionMask(bias_Bx1xLxL), states_BxSxD=states_BxLxD)
