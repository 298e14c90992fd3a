"""The encoder that turns a text into a vector for each token (Khattab and Zaharia 2020)."""

import dataclasses
from collections.abc import Mapping
from typing import Self

import jax
import jax.numpy as jnp

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.bert_encoder import BertEncoder
from bert_jax.models.embedding_model import VectorModel
from bert_jax.models.layers import Projection, unit


class MultiVectorModel(VectorModel):
    """The encoder with a projection of each state, to a vector of length 1.

    As a document, a text has the vectors of its tokens that are not skipped. As a query, it is
    expanded: [MASK]s after it make it `query_length` long and have vectors too.

    Attributes:
      width: W, the width of the vectors.
      expansion: "masked" if the text does not see the added [MASK]s, which see the text and not one
        another; "attended" if all see all; "none" if nothing is added to queries.
      query_length: Tokens of a query with its [MASK]s. A longer query gets none.
      mask_id: The id of [MASK].
      skip_ids: The ids of tokens of documents without a vector, such as punctuation.
      is_query: Whether texts are queries.
    """

    config: BertConfig
    width: int = 128
    expansion: str = "none"
    query_length: int = 32
    mask_id: int = 0
    skip_ids: tuple[int, ...] = ()
    is_query: bool = False

    def setup(self):
        self.bert = BertEncoder(self.config, has_pooler=False)
        config = dataclasses.replace(self.config, biases=False)
        self.projection = Projection(config, self.width, ("embed", "classes"))

    def __call__(
        self, batch: Mapping[str, jax.Array], *, deterministic: bool
    ) -> dict[str, jax.Array]:
        """Returns `embeddings` and `is_vector`.

        Args:
          batch: The fields of `INPUTS`, each [N, L]; see `BertEncoder`.

        Returns:
          embeddings: float32 [N, L, W], 0 where there is no vector. With [MASK]s, L is at least
            `query_length`.
          is_vector: bool [N, L].
        """
        ids_NxL, types_NxL, mask_NxL = (batch[name] for name in self.INPUTS)
        is_token_NxL = mask_NxL > 0
        if self.is_query and self.expansion != "none":
            padding = ((0, 0), (0, max(0, self.query_length - ids_NxL.shape[1])))
            ids_NxL, types_NxL, is_token_NxL = (
                jnp.pad(x, padding) for x in (ids_NxL, types_NxL, is_token_NxL)
            )
            ids_NxL = jnp.where(is_token_NxL, ids_NxL, self.mask_id)
            is_vector_NxL = is_token_NxL | (jnp.arange(ids_NxL.shape[1]) < self.query_length)
            if self.expansion == "attended":
                is_token_NxL = is_vector_NxL
        elif self.is_query:
            is_vector_NxL = is_token_NxL
        else:
            is_skipped_NxL = jnp.isin(ids_NxL, jnp.array(self.skip_ids, ids_NxL.dtype))
            is_vector_NxL = is_token_NxL & ~is_skipped_NxL
        hidden_NxLxD, _ = self.bert(
            ids_NxL, types_NxL, is_token_NxL.astype(jnp.int32), deterministic=deterministic
        )
        vectors_NxLxW = unit(self.projection(hidden_NxLxD).astype(jnp.float32))
        vectors_NxLxW = jnp.where(is_vector_NxL[..., None], vectors_NxLxW, 0)
        return {"embeddings": vectors_NxLxW, "is_vector": is_vector_NxL}

    def for_queries(self) -> Self:
        # The kernels compute nothing at padding, where the added [MASK]s are.
        fused = self.config.fused_attention if self.expansion == "none" else ""
        config = dataclasses.replace(self.config, fused_attention=fused)
        return self.clone(config=config, is_query=True)
