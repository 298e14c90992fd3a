"""The encoder that turns a text into a weight for each token of the vocabulary (SPLADE)."""

from collections.abc import Mapping
from typing import Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.bert_encoder import BertEncoder
from bert_jax.models.embedding_model import VectorModel
from bert_jax.models.heads import LanguageModelHead
from bert_jax.models.input_embeddings import vocabulary_logits

# The logits of a block of the vocabulary are in memory at once.
_MAX_BLOCK = 2048
# What is added to logits at padding. Those of ids that pad the vocabulary then stay finite.
_MASKED = -1e30


class SparseModel(VectorModel):
    """The encoder with the masked-LM head, whose logits are pooled over the tokens of a text.

    The weight of a token of the vocabulary is log(1 + relu(logit)) at the position where it is
    largest (Formal et al. 2021).

    Attributes:
      pooling: "max", or "sum" for the sum over positions.
      double_log: Whether the logarithm is applied twice, as in OpenSearch's third models.
      static_queries: Whether the tokens of a query have the weights of a table, each once.
      special_ids: The ids without a weight in such a query.
      is_query: Whether texts are queries with such weights.
    """

    config: BertConfig
    pooling: str = "max"
    double_log: bool = False
    static_queries: bool = False
    special_ids: tuple[int, ...] = ()
    is_query: bool = False

    def setup(self):
        c = self.config
        self.bert = BertEncoder(c, has_pooler=False)
        self.mlm = LanguageModelHead(c)
        if self.static_queries:
            ones = nn.with_logical_partitioning(nn.initializers.ones_init(), ("vocab",))
            self.query_weights = self.param("query_weights", ones, (c.padded_vocab_size,))

    def __call__(
        self, batch: Mapping[str, jax.Array], *, deterministic: bool
    ) -> dict[str, jax.Array]:
        """Returns `embeddings` [N, W], float32, 0 at the ids that pad the vocabulary.

        Args:
          batch: The fields of `INPUTS`, each [N, L]; see `BertEncoder`.
        """
        ids_NxL, types_NxL, mask_NxL = (batch[name] for name in self.INPUTS)
        is_token_NxL = mask_NxL > 0
        if self.is_query and not self.is_initializing():
            return {"embeddings": self._static(ids_NxL, is_token_NxL)}
        hidden_NxLxD, _ = self.bert(
            ids_NxL, types_NxL, is_token_NxL.astype(jnp.int32), deterministic=deterministic
        )
        return {"embeddings": self._pooled(hidden_NxLxD, is_token_NxL)}

    def for_queries(self) -> Self:
        # Another model would be compiled again.
        return self.clone(is_query=True) if self.static_queries else self

    def _static(self, ids_NxL: jax.Array, is_token_NxL: jax.Array) -> jax.Array:
        """Returns the weights of the table for the tokens of each text, [N, W]."""
        is_token_NxL &= ~jnp.isin(ids_NxL, jnp.array(self.special_ids, ids_NxL.dtype))
        rows_Nx1 = jnp.arange(len(ids_NxL))[:, None]
        none_NxW = jnp.zeros((len(ids_NxL), self.config.padded_vocab_size), bool)
        occurs_NxW = none_NxW.at[rows_Nx1, ids_NxL].max(is_token_NxL)
        return jnp.where(occurs_NxW, self.query_weights, 0)

    def _pooled(self, hidden_NxLxD: jax.Array, is_token_NxL: jax.Array) -> jax.Array:
        """Computes the weights in blocks of the vocabulary: [N, L, W] logits are never in memory.

        With the maximum, the backward pass reads the positions of the largest logits and computes
        no logits again.
        """
        hidden_NxLxE = self.mlm.transformed(hidden_NxLxD)
        table_WxE = self.mlm.decoder_table(self.bert.embeddings.table_WxE)
        num_blocks = 1
        while len(table_WxE) > _MAX_BLOCK * num_blocks:
            # W is a multiple of 128.
            num_blocks *= 2
        table, bias = (
            nn.with_logical_constraint(
                x.reshape(num_blocks, -1, *x.shape[1:]), (None, "vocab", *[None] * (x.ndim - 1))
            )
            for x in (table_WxE, self.mlm.decoder_bias())
        )

        def pool_block(_, block: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
            logits_NxLxV = vocabulary_logits(hidden_NxLxE, *block)
            axes = ("batch", None, "activation_vocab")
            logits_NxLxV = nn.with_logical_constraint(logits_NxLxV, axes)
            is_token_NxLx1 = is_token_NxL[..., None]
            if self.pooling == "sum":
                return None, jnp.sum(self._weights(logits_NxLxV), axis=1, where=is_token_NxLx1)
            # The largest logit has the largest weight. Its gradient needs only its position.
            logits_NxLxV += jnp.where(is_token_NxLx1, 0, _MASKED)
            largest_Nx1xV = jnp.argmax(jax.lax.stop_gradient(logits_NxLxV), axis=1, keepdims=True)
            largest_Nx1xV = checkpoint_name(largest_Nx1xV, "largest")
            is_largest_NxLxV = largest_Nx1xV == jnp.arange(logits_NxLxV.shape[1])[:, None]
            return None, jnp.sum(logits_NxLxV * is_largest_NxLxV, axis=1)

        policy = jax.checkpoint_policies.save_only_these_names("largest")
        body = jax.checkpoint(pool_block, prevent_cse=False, policy=policy)
        _, pooled_KxNxV = jax.lax.scan(body, None, (table, bias))
        pooled_NxW = jnp.swapaxes(pooled_KxNxV, 0, 1).reshape(len(hidden_NxLxD), -1)
        pooled_NxW = nn.with_logical_constraint(pooled_NxW, ("batch", "activation_vocab"))
        return pooled_NxW if self.pooling == "sum" else self._weights(pooled_NxW)

    def _weights(self, logits: jax.Array) -> jax.Array:
        weights = jnp.log1p(jax.nn.relu(logits))
        return jnp.log1p(weights) if self.double_log else weights
