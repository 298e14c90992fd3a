"""Scores sentence embeddings on retrieval, beside BM25."""

from collections.abc import Callable
from typing import Any

from bert_jax.inference.bert import Bert
from bert_jax.inference.similarity import embed
from bert_jax.interop.sentence_transformers import Embedding
from bert_jax.tasks.retrieval import (
    BASELINE_PREFIX,
    Retrieval,
    bm25_similarities,
    retrieval_scores,
    similarities,
)


def score_retrieval(
    bert: Bert,
    data: Retrieval,
    embedding: Embedding,
    advance: Callable[[int], None] = lambda texts: None,
) -> dict[str, Any]:
    """Ranks the documents of each query by the similarity of their embeddings.

    Args:
      embedding: From `Bert.embedding_with`, with pooling "mean" or "cls". Its prompts for queries
        and documents are put before them.
      advance: Called with the number of texts just embedded.

    Returns:
      The scores of `retrieval_scores` and, with BASELINE_PREFIX, those of BM25; `num_queries`,
      `num_documents`, `pooling` and `max_length`.
    """
    sides = (data.queries, embedding.for_queries()), (data.documents, embedding.for_documents())
    queries_QxD, documents_NxD = (
        embed(bert, bert.embedding_rows(texts, own), own, advance) for texts, own in sides
    )
    similarity = similarities(queries_QxD, documents_NxD, embedding.similarity)
    scores = retrieval_scores(data, similarity)
    baseline = retrieval_scores(data, bm25_similarities(data))
    return {
        **scores,
        **{f"{BASELINE_PREFIX}{name}": value for name, value in baseline.items()},
        "num_queries": len(data.queries),
        "num_documents": len(data.documents),
        "pooling": embedding.pooling,
        "max_length": embedding.max_length,
    }
