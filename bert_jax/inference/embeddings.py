"""Scores sentence embeddings on retrieval, and on pairs whose similarity people have judged."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax.base.progress import say
from bert_jax.inference.bert import Bert
from bert_jax.inference.forward import distinct_rows
from bert_jax.interop.embedding import Embedding
from bert_jax.tasks import retrieval
from bert_jax.tasks.retrieval import (
    Retrieval,
    bm25_similarities,
    cosine_similarities,
    retrieval_scores,
    similarities,
)
from bert_jax.tasks.scores import regression_scores
from bert_jax.tasks.vectors import Vectors, active_dims, joined, taken
from bert_jax.tokenizers import TokenRow

# The scores that are reported, and the prefix of those of the baseline.
SCORES = ("spearman", "pearson")
BASELINE_PREFIX = "common_tokens_"
# The scores that `score_retrieval` adds for vectors that are not dense.
SIZES = (
    "query_active_dims",
    "query_sparsity_ratio",
    "corpus_active_dims",
    "corpus_sparsity_ratio",
    "avg_flops",
    "document_vectors",
)
# The number of texts between two updates of the progress.
_CHUNK = 256


def score_pairs(
    bert: Bert,
    pairs: tuple[Sequence[str], Sequence[str], np.ndarray],
    embedding: Embedding,
    advance: Callable[[int], None] = lambda sentences: None,
) -> dict[str, Any]:
    """Correlates the similarity of sentence embeddings with the scores of pairs.

    Args:
      pairs: The sentences of both sides, and the scores, [N]; see `read_pairs`.

    Returns:
      SCORES of the model and, with BASELINE_PREFIX, of the cosine similarity of the two sentences'
      token counts; `num_pairs`, `pooling`, `max_length` and `prompt`, which both sides have. A
      correlation is None if all values of a side are the same.
    """
    first, second, scores_N = pairs
    bert.require_dense("the score of pairs")
    rows = bert.embedding_rows([*first, *second], embedding)
    vectors_2xNxD = embed(bert, rows, embedding, advance).reshape(2, len(first), -1)
    special = [bert.tokenizer.cls_id, bert.tokenizer.sep_id]
    counts = [Counter(row.input_ids_L[~np.isin(row.input_ids_L, special)].tolist()) for row in rows]
    counts_of_pairs = zip(counts[: len(first)], counts[len(first) :], strict=True)
    baseline_N = np.array([_counts_cosine(*both) for both in counts_of_pairs])
    similarity_N = _SIMILARITIES[embedding.similarity](*vectors_2xNxD)
    results = {}
    for prefix, values_N in (("", similarity_N), (BASELINE_PREFIX, baseline_N)):
        found = regression_scores(scores_N, values_N)
        results |= {f"{prefix}{name}": found[name] for name in SCORES}
    settings = {name: getattr(embedding, name) for name in ("pooling", "max_length", "prompt")}
    return {**results, "num_pairs": len(first), **settings}


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

    Returns:
      The scores of `retrieval_scores` and, beside them, those of BM25; `num_queries`,
      `num_documents`, `pooling`, `max_length`, `query_prompt` and `document_prompt`. A sparse model
      adds the values of `active_dims`, and a multi-vector model "document_vectors", the mean number
      of vectors of a document.
    """
    queries, texts, number_N = text_vectors(bert, data, embedding, advance)
    similarity = similarities(queries, texts, number_N, embedding.similarity)
    baseline = retrieval_scores(data, bm25_similarities(data))
    sizes = {}
    if embedding.kind == "sparse":
        documents = taken(texts, number_N)
        sizes, length_N = active_dims(queries, documents), np.diff(documents.indptr)
    elif embedding.kind == "multi_vector":
        length_N = np.array([len(texts[n]) for n in number_N])
        sizes = {"document_vectors": float(np.mean(length_N))}
    if sizes and not length_N.all():
        number = np.sum(length_N == 0)
        say(f"warning: {number:,} documents have no vector or only zeros: they come last")
    return {
        **retrieval_scores(data, similarity),
        **{f"{retrieval.BASELINE_PREFIX}{name}": value for name, value in baseline.items()},
        **sizes,
        "num_queries": len(data.queries),
        "num_documents": len(data.documents),
        "pooling": embedding.pooling,
        "max_length": embedding.max_length,
        "query_prompt": embedding.for_queries().prompt,
        "document_prompt": embedding.for_documents().prompt,
    }


def text_vectors(
    bert: Bert, data: Retrieval, embedding: Embedding, advance: Callable[[int], None]
) -> tuple[Vectors, Vectors, np.ndarray]:
    """Returns the vectors of queries and of distinct texts, and the text of each document, int [N].

    Args:
      embedding, advance: See `score_retrieval`.
    """
    texts, number_N = data.distinct()
    sides = (data.queries, embedding.for_queries()), (texts, embedding.for_documents())
    vectors = (embed(bert, bert.embedding_rows(texts, own), own, advance) for texts, own in sides)
    return *vectors, number_N


def embed(
    bert: Bert,
    rows: Sequence[TokenRow],
    embedding: Embedding,
    advance: Callable[[int], None] = lambda texts: None,
) -> Vectors:
    """Computes the embeddings of rows, float32 [N, D] if they are dense; see `score_pairs`."""
    distinct, numbers = distinct_rows(rows)
    advance(len(rows) - len(distinct))
    vectors = []
    for start in range(0, len(distinct), _CHUNK):
        chunk = distinct[start : start + _CHUNK]
        found = bert.features(chunk, bert.layers([-1]), embedding)
        vectors.append(np.concatenate(found) if embedding.kind == "dense" else found)
        advance(len(chunk))
    return taken(joined(vectors), numbers)


# Larger values mean more similar texts, as in sentence-transformers.
_SIMILARITIES = {
    "cosine": cosine_similarities,
    "dot": lambda first_NxD, second_NxD: (first_NxD * second_NxD).sum(1),
    "euclidean": lambda first_NxD, second_NxD: -np.linalg.norm(first_NxD - second_NxD, axis=1),
    "manhattan": lambda first_NxD, second_NxD: -np.abs(first_NxD - second_NxD).sum(1),
}


def _counts_cosine(first: Counter[int], second: Counter[int]) -> float:
    """Computes the cosine similarity of token counts; 0 if a sentence has no tokens."""
    dot = sum(count * second[i] for i, count in first.items())
    lengths = math.hypot(*first.values()) * math.hypot(*second.values())
    # Rounding errors must not break the ties that Spearman's ranks have.
    return round(dot / lengths, 12) if lengths else 0.0
