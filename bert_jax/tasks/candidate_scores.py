"""Scores of ranked candidate documents.

They are those of CrossEncoderRerankingEvaluator in sentence-transformers 6, but for equal scores:
there each number has its own rule, and here relevant documents come after equal others.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from bert_jax.tasks.retrieval import Retrieval

# Documents of a ranking that nDCG and MRR see.
_CUTOFF = 10
_NDCG = f"ndcg@{_CUTOFF}"
# The prefix of the scores of the first stage, before documents are reranked.
FIRST_PREFIX = "first_"


def ranking_of(scores_C: np.ndarray, is_relevant_C: np.ndarray) -> np.ndarray:
    """Ranks candidates by their scores: whether the one of each rank is relevant, bool [C]."""
    return is_relevant_C[np.lexsort((is_relevant_C, -scores_C))]


def first_ranking(is_relevant_R: np.ndarray, num_relevant: int) -> np.ndarray:
    """Adds the relevant documents that a ranking lacks at its end, unless it lacks them all."""
    num_missed = num_relevant - is_relevant_R.sum() if is_relevant_R.any() else 0
    return np.concatenate([is_relevant_R, np.ones(num_missed, bool)])


def candidate_scores(rankings: Iterable[np.ndarray]) -> dict[str, float]:
    """Computes the means over all queries of "ndcg@10", "mrr@10" and "map".

    Args:
      rankings: Whether the document of each rank is relevant, bool [R]. A query without a relevant
        one counts as 0.
    """
    scores_Qx3 = [_scores(is_relevant_R) for is_relevant_R in rankings]
    names = _NDCG, f"mrr@{_CUTOFF}", "map"
    return dict(zip(names, np.mean(scores_Qx3, axis=0).tolist(), strict=True))


def _scores(is_relevant_R: np.ndarray) -> tuple[float, float, float]:
    ranks_H = np.flatnonzero(is_relevant_R) + 1
    if not ranks_H.size:
        return 0.0, 0.0, 0.0
    count_H = np.arange(1, len(ranks_H) + 1)
    gain, best = (np.sum(1 / np.log2(x[x <= _CUTOFF] + 1)) for x in (ranks_H, count_H))
    mrr = 1 / ranks_H[0] if ranks_H[0] <= _CUTOFF else 0.0
    return gain / best, mrr, np.mean(count_H / ranks_H)


def two_stage_scores(
    data: Retrieval, documents: Sequence[np.ndarray], scores: Sequence[np.ndarray], depth: int
) -> dict[str, float]:
    """Scores the documents that a first stage found, before and after they are reranked.

    Args:
      documents: The numbers of at most `depth` documents for each query, in the order of the first
        stage; see `retrieval.nearest`.
      scores: The reranker's scores of these documents.

    Returns:
      `candidate_scores` of the documents and, with FIRST_PREFIX, those of the first stage, in which
      the documents that it missed come last. For the reranker these do not exist: to compare it
      with the first stage, "full_ndcg@10" has them last in both. "recall@DEPTH" is the mean
      fraction of relevant documents that were found, which reranking does not change.
    """
    found = [
        np.isin(numbers_R, list(relevant))
        for numbers_R, relevant in zip(documents, data.relevant, strict=True)
    ]
    counts = [len(relevant) for relevant in data.relevant]
    ranked = [*map(ranking_of, scores, found)]
    first = candidate_scores(map(first_ranking, found, counts))
    recall = float(np.mean([is_relevant_R.sum() for is_relevant_R in found] / np.array(counts)))
    full = f"full_{_NDCG}"
    first |= {full: first[_NDCG], f"recall@{depth}": recall}
    return {
        **candidate_scores(ranked),
        full: candidate_scores(map(first_ranking, ranked, counts))[_NDCG],
        f"recall@{depth}": recall,
        **{f"{FIRST_PREFIX}{name}": value for name, value in first.items()},
    }
