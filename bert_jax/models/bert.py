"""The BERT encoder: embeddings, blocks and pooler."""

import flax.linen as nn
import jax

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.embeddings import BertEmbeddings
from bert_jax.models.encoder import Encoder
from bert_jax.models.heads import Pooler


class BertEncoder(nn.Module):
    """Embeddings, blocks and pooler: the part that all objectives and tasks share.

    Attributes:
      config: The model's hyperparameters.
      has_pooler: Whether the pooler and its parameters exist.
    """

    config: BertConfig
    has_pooler: bool = True

    def setup(self):
        self.embeddings = BertEmbeddings(self.config)
        self.encoder = Encoder(self.config)
        if self.has_pooler:
            self.pooler = Pooler(self.config)

    def __call__(
        self,
        input_ids_BxL: jax.Array,
        token_type_ids_BxL: jax.Array,
        attention_mask_BxL: jax.Array,
        *,
        deterministic: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Encodes token ids.

        Args:
          input_ids_BxL: int32 token ids below `vocab_size`.
          token_type_ids_BxL: int32, 0 in segment A, 1 in segment B.
          attention_mask_BxL: int32, 1 at real tokens, 0 at padding.
          deterministic: True for evaluation: no dropout, no "dropout" rng needed.

        Returns:
          hidden_BxLxD and pooled_BxD (None without a pooler), in `config.dtype`.
        """
        hidden_BxLxD = self.embeddings(input_ids_BxL, token_type_ids_BxL, deterministic)
        hidden_BxLxD = self.encoder(hidden_BxLxD, attention_mask_BxL, deterministic)
        if not self.has_pooler:
            return hidden_BxLxD, None
        return hidden_BxLxD, self.pooler(hidden_BxLxD, attention_mask_BxL, deterministic)

    def hidden_states(
        self,
        input_ids_BxL: jax.Array,
        token_type_ids_BxL: jax.Array,
        attention_mask_BxL: jax.Array,
        *,
        deterministic: bool,
    ) -> list[jax.Array]:
        """Returns all hidden_BxLxD: the embeddings, then the output of each block in order."""
        embedded_BxLxD = self.embeddings(input_ids_BxL, token_type_ids_BxL, deterministic)
        blocks = self.encoder(embedded_BxLxD, attention_mask_BxL, deterministic, all_layers=True)
        return [embedded_BxLxD, *blocks]
