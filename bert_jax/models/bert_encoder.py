"""The BERT encoder: embeddings, blocks and pooler."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.decoder import Decoder
from bert_jax.models.encoder import Encoder
from bert_jax.models.heads import Pooler
from bert_jax.models.input_embeddings import BertEmbeddings
from bert_jax.models.layers import Projection


class BertEncoder(nn.Module):
    """Embeddings, blocks and pooler: the part that all objectives and tasks share."""

    config: BertConfig
    has_pooler: bool = True

    def setup(self):
        c = self.config
        self.embeddings = BertEmbeddings(c)
        if c.embedding_width != c.hidden_size:
            self.embeddings_project = Projection(c, c.hidden_size, ("pooled", "embed"))
        self.encoder = Encoder(c)
        if c.num_decoder_layers:
            self.decoder = Decoder(c)
        if self.has_pooler:
            self.pooler = Pooler(c)

    def __call__(
        self,
        input_ids_BxL: jax.Array,
        token_type_ids_BxL: jax.Array,
        attention_mask_BxL: jax.Array,
        *,
        deterministic: bool,
        position_ids_BxL: jax.Array | None = None,
        cls_positions_BxP: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Encodes token ids.

        Up to P sequences share a row if `cls_positions_BxP` is given. The attention mask then has
        the number of its sequence at each token; see `Encoder`.

        Args:
          input_ids_BxL: int32 token ids below `vocab_size`.
          token_type_ids_BxL: int32, 0 in segment A, 1 in segment B.
          attention_mask_BxL: int32, 1 at real tokens, 0 at padding.
          deterministic: True for evaluation: no dropout, no "dropout" rng needed.
          position_ids_BxL: int32, the position of each token in its sequence; None if a row is one
            sequence.
          cls_positions_BxP: int32, the first position of each sequence of a row.

        Returns:
          hidden_BxLxD and pooled_BxD (None without a pooler), in `config.dtype`. With
          `cls_positions_BxP`, pooled_BxPxD.
        """
        sequences_per_row = 1 if cls_positions_BxP is None else cls_positions_BxP.shape[1]
        embedded_BxLxE = self.embeddings(
            input_ids_BxL,
            token_type_ids_BxL,
            deterministic,
            position_ids_BxL,
            attention_mask_BxL,
            sequences_per_row,
        )
        hidden_BxLxD = self.encoder(
            self.embedded(embedded_BxLxE),
            attention_mask_BxL,
            deterministic,
            sequences_per_row=sequences_per_row,
        )
        if not self.has_pooler:
            return hidden_BxLxD, None
        return hidden_BxLxD, self.pooler(
            hidden_BxLxD, attention_mask_BxL, deterministic, cls_positions_BxP
        )

    def embedded(self, embedded_BxLxE: jax.Array) -> jax.Array:
        """Returns the input of the first block, hidden_BxLxD, for the output of the embeddings."""
        if self.config.embedding_width == self.config.hidden_size:
            return embedded_BxLxE
        hidden_BxLxD = self.embeddings_project(embedded_BxLxE)
        return nn.with_logical_constraint(hidden_BxLxD, ("batch", None, None))

    def hidden_states(
        self,
        input_ids_BxL: jax.Array,
        token_type_ids_BxL: jax.Array,
        attention_mask_BxL: jax.Array,
        *,
        deterministic: bool,
    ) -> list[jax.Array]:
        """Returns all hidden_BxLxD: the input of the first block, then each block's output."""
        numbers_BxL = (attention_mask_BxL > 0).astype(jnp.int32)
        embedded_BxLxE = self.embeddings(
            input_ids_BxL, token_type_ids_BxL, deterministic, numbers_BxL=numbers_BxL
        )
        hidden_BxLxD = self.embedded(embedded_BxLxE)
        blocks = self.encoder(hidden_BxLxD, attention_mask_BxL, deterministic, all_layers=True)
        return [hidden_BxLxD, *blocks]
