"""ELECTRA's generator: a small masked language model on the embeddings of the main model."""

import flax.linen as nn
import jax

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.encoder import Encoder
from bert_jax.models.heads import LanguageModelHead
from bert_jax.models.layers import Projection


class Generator(nn.Module):
    """The generator's layers above the shared embeddings (Clark et al. 2020, section 3).

    Attributes:
      config: The generator's own hyperparameters, `BertConfig.generator`.
    """

    config: BertConfig

    def setup(self):
        c = self.config
        if c.embedding_width != c.hidden_size:
            self.embeddings_project = Projection(c, c.hidden_size, ("pooled", "embed"))
        self.encoder = Encoder(c)
        self.mlm = LanguageModelHead(c)

    def __call__(
        self,
        embedded_BxLxE: jax.Array,
        attention_mask_BxL: jax.Array,
        positions_BxM: jax.Array,
        table_WxE: jax.Array,
        *,
        deterministic: bool,
    ) -> jax.Array:
        """Returns float32 logits_BxMxW at some positions; see `LanguageModelHead`.

        Args:
          embedded_BxLxE: The output of the embeddings.
          attention_mask_BxL: int32, 1 at real tokens, 0 at padding.
          positions_BxM: int32 positions to predict.
          table_WxE: The word embeddings.
          deterministic: True for evaluation: no dropout.
        """
        hidden_BxLxD = embedded_BxLxE
        if self.config.embedding_width != self.config.hidden_size:
            hidden_BxLxD = self.embeddings_project(embedded_BxLxE)
            hidden_BxLxD = nn.with_logical_constraint(hidden_BxLxD, ("batch", None, None))
        hidden_BxLxD = self.encoder(hidden_BxLxD, attention_mask_BxL, deterministic)
        return self.mlm(hidden_BxLxD, positions_BxM, table_WxE)
