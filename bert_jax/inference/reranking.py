"""Scores a reranker on retrieval, beside the first stage whose documents it ranks again."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.heads.reranker import pair_scores
from bert_jax.inference.finetuned import FineTuned
from bert_jax.tasks.candidate_scores import two_stage_scores
from bert_jax.tasks.retrieval import Retrieval


def score_reranking(
    bert: FineTuned,
    data: Retrieval,
    ranked: list[np.ndarray],
    depth: int,
    advance: Callable[[int], None] = lambda pairs: None,
) -> dict[str, Any]:
    """Reranks the first documents for each query, and scores both rankings.

    Args:
      ranked: The numbers of these documents in the order of the first stage, at most `depth` for
        each query; see `retrieval.nearest`.

    Returns:
      The scores of `two_stage_scores`, `num_queries`, `num_documents`, `num_pairs` and `depth`.
    """
    pairs = (
        (query, data.documents[number])
        for query, ranked_R in zip(data.queries, ranked, strict=True)
        for number in ranked_R.tolist()
    )
    # A sigmoid keeps the order, but it rounds high logits to 1.
    scores_N = pair_scores(bert, pairs, "identity", advance=advance)
    ends_Q = np.cumsum([len(ranked_R) for ranked_R in ranked])
    return {
        **two_stage_scores(data, ranked, np.split(scores_N, ends_Q[:-1]), depth),
        "num_queries": len(data.queries),
        "num_documents": len(data.documents),
        "num_pairs": len(scores_N),
        "depth": depth,
    }
