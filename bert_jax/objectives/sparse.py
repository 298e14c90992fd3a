"""The losses of sparse embeddings: those of dense ones, and how many products a search takes."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.on_devices import num_batch_shards
from bert_jax.objectives.contrastive import Contrastive
from bert_jax.objectives.flops import encoder_flops
from bert_jax.objectives.language_model import language_model_head_flops
from bert_jax.objectives.objective import Batch
from bert_jax.objectives.similarity import Vectors


@dataclasses.dataclass(frozen=True)
class SparseContrastive(Contrastive):
    """A loss of `Contrastive` and FLOPS (Paria et al. 2020) of queries and of documents.

    FLOPS is that of the whole batch, over all devices. Metrics are both terms as they are
    added to the loss, and the mean numbers of weights that are not 0.

    Attributes:
      query_flops, document_flops: The factors of FLOPS. A term with the factor 0 does not exist.
      flops_warmup: The number of steps in which the factors grow with the square of the step.
    """

    similarity: str = "dot"
    query_flops: float = 5e-5
    document_flops: float = 3e-5
    flops_warmup: int = 0

    @property
    def averaged(self) -> tuple[str, ...]:
        sides = ("query", "document")
        terms = [f"{side}_flops" for side in sides if getattr(self, f"{side}_flops")]
        return *super().averaged, *terms, *(f"{side}_active_dims" for side in sides)

    def forward_flops(self, model, length):
        """Counts the encoder and, at all positions, the masked-LM head; a static query has neither.

        With the maximum, no logit is computed again in the backward pass.
        """
        head = length * language_model_head_flops(model.config)
        document = encoder_flops(model.config, length, None) + head
        return 0.0 if model.static_queries else document, document

    def loss(self, model, params, batch, rngs, totals, frozen, step):
        queries_BxV, documents_BxCxV = self.embed(model, params, batch, rngs)
        loss, metrics = self.of_vectors(queries_BxV, documents_BxCxV, batch)
        is_document_BxC = batch["document_numbers"] >= 0
        sides = {
            "query": (queries_BxV, jnp.ones(len(queries_BxV), bool), self.query_flops),
            "document": (
                documents_BxCxV.reshape(-1, documents_BxCxV.shape[-1]),
                is_document_BxC.reshape(-1),
                self.document_flops,
            ),
        }
        grown = jnp.minimum(step / self.flops_warmup, 1) ** 2 if self.flops_warmup else 1.0
        for side, (vectors_NxV, is_text_N, factor) in sides.items():
            active = jnp.sum(vectors_NxV > 0, axis=1, dtype=jnp.float32)
            metrics[f"{side}_active_dims"] = jnp.mean(active, where=is_text_N)
            if factor:
                metrics[f"{side}_flops"] = grown * factor * flops_loss(vectors_NxV, is_text_N)
                loss += metrics[f"{side}_flops"]
        return loss, metrics | {"loss": loss}

    def embed(self, model: Any, params: Any, batch: Batch, rngs: Any) -> tuple[Vectors, Vectors]:
        """Computes queries_BxV and documents_BxCxV, of which each device has a part of V.

        A gather of the rows for the similarities would move all of V to each device.
        """
        padding = -model.config.padded_vocab_size % num_batch_shards()

        def by_vocabulary(x: jax.Array) -> jax.Array:
            x = jnp.pad(x, (*[(0, 0)] * (x.ndim - 1), (0, padding)))
            return nn.with_logical_constraint(x, (*[None] * (x.ndim - 1), "batch"))

        return jax.tree.map(by_vocabulary, super().embed(model, params, batch, rngs))


def flops_loss(vectors_NxV: jax.Array, is_text_N: jax.Array) -> jax.Array:
    """Sums the squares of the mean weights of all tokens of the vocabulary."""
    return jnp.sum(jnp.mean(vectors_NxV, axis=0, where=is_text_N[:, None]) ** 2)
