"""Scores of ranked candidate documents.

They are those of CrossEncoderRerankingEvaluator in sentence-transformers 6, but for equal scores:
there each number has its own rule, and here relevant documents come after equal others.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.tasks.retrieval import Retrieval

# Documents of a ranking that nDCG and MRR see.
_CUTOFF = 10
_NDCG, _MRR = f"ndcg@{_CUTOFF}", f"mrr@{_CUTOFF}"
# The prefix of the scores of the first stage, before documents are reranked.
FIRST_PREFIX = "first_"


class CandidateRanking(NamedTuple):
    """The candidates of a query.

    Attributes:
      scores_C: The score of each candidate.
      is_relevant_C: bool, which candidates are relevant.
      num_relevant: The number of relevant documents that a perfect ranking has: at least that of
        the relevant candidates.
    """

    scores_C: np.ndarray
    is_relevant_C: np.ndarray
    num_relevant: int


def ranking_of(scores_C: np.ndarray, is_relevant_C: np.ndarray) -> CandidateRanking:
    """Makes the ranking of candidates by their scores; nothing but them is to be found."""
    return CandidateRanking(scores_C, is_relevant_C, int(np.sum(is_relevant_C)))


def first_ranking(is_relevant_C: np.ndarray, num_relevant: int) -> CandidateRanking:
    """Makes the ranking in which a first stage gave the candidates.

    The relevant documents that it missed follow at the end, unless it missed them all.
    """
    num_found = int(np.sum(is_relevant_C))
    num_missed = num_relevant - num_found if num_found else 0
    whole_R = np.concatenate([is_relevant_C, np.ones(num_missed, bool)])
    return ranking_of(-np.arange(len(whole_R)), whole_R)


def candidate_scores(rankings: Iterable[CandidateRanking]) -> dict[str, float]:
    """Computes the means over all queries of "ndcg@10", "mrr@10" and "map".

    Relevance is yes or no. A query without a relevant candidate counts as 0.
    """
    scores_Qx3 = [_scores(ranking) for ranking in rankings]
    means_3 = np.mean(scores_Qx3, axis=0).tolist()
    return dict(zip((_NDCG, _MRR, "map"), means_3, strict=True))


def two_stage_scores(
    data: Retrieval, documents: Sequence[np.ndarray], scores: Sequence[np.ndarray], depth: int
) -> dict[str, float]:
    """Scores the documents that a first stage found, before and after they are reranked.

    Args:
      documents: The numbers of at most `depth` documents for each query, in the order of the first
        stage; see `retrieval.nearest`.
      scores: The reranker's scores of these documents.

    Returns:
      `candidate_scores` and, with FIRST_PREFIX, those of the first stage. A relevant document that
      it missed is no candidate of the reranker, and costs it nothing. "full_ndcg@10" counts such
      documents in both, as in `retrieval_scores`. "recall@DEPTH" is the mean fraction of the
      relevant documents that the first stage found.
    """
    rankings = [
        CandidateRanking(scores_C, np.isin(ranked_C, list(relevant)), len(relevant))
        for scores_C, ranked_C, relevant in zip(scores, documents, data.relevant, strict=True)
    ]
    stages = {
        FIRST_PREFIX: (
            [first_ranking(x.is_relevant_C, x.num_relevant) for x in rankings],
            [x._replace(scores_C=-np.arange(len(x.scores_C))) for x in rankings],
        ),
        "": ([ranking_of(x.scores_C, x.is_relevant_C) for x in rankings], rankings),
    }
    found = {}
    for prefix, (as_found, with_missed) in stages.items():
        found |= {f"{prefix}{name}": value for name, value in candidate_scores(as_found).items()}
        found[f"{prefix}full_{_NDCG}"] = candidate_scores(with_missed)[_NDCG]
    recalls = [np.sum(x.is_relevant_C) / x.num_relevant for x in rankings]
    return found | {f"recall@{depth}": float(np.mean(recalls))}


def _scores(ranking: CandidateRanking) -> tuple[float, float, float]:
    order_C = np.lexsort((ranking.is_relevant_C, -np.asarray(ranking.scores_C)))
    # The ranks of the relevant candidates, from 1.
    ranks_H = np.flatnonzero(np.asarray(ranking.is_relevant_C)[order_C]) + 1
    if not ranks_H.size:
        return 0.0, 0.0, 0.0
    first_H = ranks_H[ranks_H <= _CUTOFF]
    best_R = np.arange(1, min(ranking.num_relevant, _CUTOFF) + 1)
    ndcg = np.sum(1 / np.log2(first_H + 1)) / np.sum(1 / np.log2(best_R + 1))
    mrr = 1 / first_H[0] if first_H.size else 0.0
    precision_H = np.arange(1, len(ranks_H) + 1) / ranks_H
    return ndcg, mrr, np.sum(precision_H) / ranking.num_relevant
