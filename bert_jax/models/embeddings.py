"""Word, position and segment embeddings, summed."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.layers import layer_norm, weight_init


class BertEmbeddings(nn.Module):
    """Sum of three tables, then LayerNorm, then dropout (paper, section 3)."""

    config: BertConfig

    def setup(self):
        c = self.config
        width = c.hidden_size
        self.word_embeddings = self.param(
            "word_embeddings", weight_init(c, "vocab", "embed"), (c.vocab_size, width)
        )
        self.position_embeddings = self.param(
            "position_embeddings",
            weight_init(c, "position", "embed"),
            (c.max_position_embeddings, width),
        )
        self.token_type_embeddings = self.param(
            "token_type_embeddings", weight_init(c, "segment", "embed"), (c.type_vocab_size, width)
        )
        self.layer_norm = layer_norm(c, "layer_norm")
        self.dropout = nn.Dropout(c.hidden_dropout_prob)

    def __call__(
        self, input_ids_BxL: jax.Array, token_type_ids_BxL: jax.Array, deterministic: bool
    ) -> jax.Array:
        """Returns hidden_BxLxD in `config.dtype`; L is at most max_position_embeddings."""
        length = input_ids_BxL.shape[-1]
        hidden_BxLxD = self.word_embeddings[input_ids_BxL]
        hidden_BxLxD += self.position_embeddings[None, :length]
        # Two rows: a product with a one-hot vector is cheaper than a gather,
        # and its gradient is a sum, not a scatter.
        segment_BxLxT = jax.nn.one_hot(token_type_ids_BxL, self.config.type_vocab_size)
        # At full precision: a TPU would round the table to bfloat16 otherwise.
        hidden_BxLxD += jnp.matmul(segment_BxLxT, self.token_type_embeddings, precision="highest")
        hidden_BxLxD = self.layer_norm(hidden_BxLxD)
        return self.dropout(hidden_BxLxD, deterministic=deterministic)

    def logits(self, hidden_BxMxD: jax.Array) -> jax.Array:
        """The MLM decoder's product with the word embeddings, float32 [B, M, V]."""
        dtype = self.config.dtype
        return jnp.einsum(
            "BMD,VD->BMV",
            hidden_BxMxD.astype(dtype),
            self.word_embeddings.astype(dtype),
            preferred_element_type=jnp.float32,
        )
