"""Similarities of queries and documents in a loss, with one vector or several for each text.

Vectors of B queries and of the C documents of each are queries_BxD and documents_BxCxD. If a text
has several vectors (`models.multi_vector_model`), they are pairs of vectors and which of these
exist: [B, L, W] and [B, L]; [B, C, M, W] and [B, C, M].
"""

import functools
from typing import TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.layers import unit
from bert_jax.models.on_devices import num_batch_shards
from bert_jax.objectives.objective import EXCLUDED

Vectors: TypeAlias = jax.Array | tuple[jax.Array, jax.Array]
# Bytes of the products of a block of documents with queries that a device holds at once.
_BLOCK_BYTES = 2**24
# The similarity of a document without a vector, as in sentence-transformers.
_NO_VECTOR = -1e9

products = functools.partial(jnp.einsum, precision="highest")


def prepared(queries: Vectors, documents: Vectors, similarity: str) -> tuple[Vectors, Vectors]:
    """Scales vectors so that `own_scores` and `all_scores` give a similarity.

    Args:
      similarity: "cosine" or "dot" of one vector, "maxsim" or "mean_maxsim" of several. MaxSim sums
        over the vectors of the query the largest dot product with one of the document (Khattab and
        Zaharia 2020); the mean divides by their number.
    """
    if similarity == "cosine":
        return unit(queries), unit(documents)
    if similarity == "mean_maxsim":
        queries_BxLxW, is_query_BxL = queries
        number_Bx1x1 = jnp.sum(is_query_BxL, axis=1)[:, None, None]
        return (queries_BxLxW / jnp.maximum(number_Bx1x1, 1), is_query_BxL), documents
    return queries, documents


def own_scores(queries: Vectors, documents: Vectors) -> jax.Array:
    """Computes the similarity of each query to the documents of its row, float32 [B, C]."""
    if not isinstance(queries, tuple):
        return jnp.sum(queries[:, None] * documents, axis=-1)

    # One column of documents at a time. The backward pass computes the products again.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def of_column(_: None, column: Vectors) -> tuple[None, jax.Array]:
        documents_BxMxW, is_document_BxM = column
        products_BxLxM = products("blw,bmw->blm", queries[0], documents_BxMxW)
        return None, _maxsim(products_BxLxM, queries[1], is_document_BxM[:, None])

    columns = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), documents)
    return jax.lax.scan(of_column, None, columns)[1].T


def all_scores(queries: Vectors, documents: Vectors) -> jax.Array:
    """Computes the similarity of each query to the documents of all rows, float32 [B, B, C]."""
    if not isinstance(queries, tuple):
        return products("id,jcd->ijc", queries, documents)
    # Gathered from all devices here, instead of in each step.
    documents = jax.tree.map(
        lambda x: nn.with_logical_constraint(x, (None,) * x.ndim).reshape(-1, *x.shape[2:]),
        documents,
    )
    (rows, length), (number, other) = queries[1].shape, documents[1].shape
    bytes_of_document = 4 * rows * length * other // num_batch_shards()
    size = min(number, max(1, _BLOCK_BYTES // bytes_of_document))
    blocks = jax.tree.map(
        lambda x: jnp.pad(x, ((0, -number % size), *[(0, 0)] * (x.ndim - 1))).reshape(
            -1, size, *x.shape[1:]
        ),
        documents,
    )

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def of_block(_: None, block: Vectors) -> tuple[None, jax.Array]:
        documents_KxMxW, is_document_KxM = block
        products_BxKxLxM = products("blw,kmw->bklm", queries[0], documents_KxMxW)
        return None, _maxsim(products_BxKxLxM, queries[1][:, None], is_document_KxM[:, None])

    _, scores_NxBxK = jax.lax.scan(of_block, None, blocks)
    scores_BxN = jnp.swapaxes(scores_NxBxK, 0, 1).reshape(rows, -1)[:, :number]
    return nn.with_logical_constraint(scores_BxN.reshape(rows, rows, -1), ("batch", None, None))


def _maxsim(products_LxM: jax.Array, is_query_L: jax.Array, is_document_1xM: jax.Array):
    """Reduces dot products [..., L, M] to similarities [...]; see `prepared`."""
    best_L = jnp.max(jnp.where(is_document_1xM, products_LxM, EXCLUDED), axis=-1)
    sum_ = jnp.sum(best_L, axis=-1, where=is_query_L)
    return jnp.where(jnp.any(is_document_1xM, axis=(-2, -1)), sum_, _NO_VECTOR)
