"""Scores of candidates, with the numbers of CrossEncoderRerankingEvaluator."""

import math

import numpy as np
import pytest

from bert_jax.tasks.candidate_scores import (
    candidate_scores,
    first_ranking,
    ranking_of,
    two_stage_scores,
)
from bert_jax.tasks.retrieval import make_retrieval, nearest

# The score of a letter (a is 0), the relevant letters, and those that the first stage found.
QUERIES = [
    (lambda i: round(3 * math.sin(i + 1), 3), "ch", "abcdefghijkl"),
    (lambda i: 0.5, "b", "abcde"),
    (lambda i: i % 3, "mn", "abcdefg"),
]


def gain(*ranks):
    return sum(1 / math.log2(rank + 1) for rank in ranks)


def ranking(score, relevant, candidates):
    scores_C = np.array([score(ord(letter) - ord("a")) for letter in candidates])
    return ranking_of(scores_C, np.array([letter in relevant for letter in candidates]))


def test_all_positives_are_candidates():
    rankings = [
        ranking(score, relevant, relevant + "".join(x for x in found if x not in relevant))
        for score, relevant, found in QUERIES
    ]
    found = candidate_scores(rankings)
    assert found["map"] == pytest.approx(0.3592592593)
    # The second and third have equal scores, for which sentence-transformers has other rules.
    ndcg = 0.8315546296, gain(5), gain(5, 9) / gain(1, 2)
    assert found["ndcg@10"] == pytest.approx(np.mean(ndcg))
    assert found["mrr@10"] == pytest.approx((1 + 1 / 5 + 1 / 5) / 3)
    alone = {"ndcg@10": 0.8315546296, "mrr@10": 1, "map": 0.6666666667}
    assert candidate_scores(rankings[:1]) == pytest.approx(alone)


def test_what_the_first_stage_missed_is_not_reranked():
    rankings = [ranking(*query) for query in QUERIES]
    found = candidate_scores(rankings)
    assert found["map"] == pytest.approx(0.2888888889)
    # No candidate of the third is relevant.
    assert candidate_scores(rankings[2:]) == {"ndcg@10": 0, "mrr@10": 0, "map": 0}
    # Only what is there can be found.
    assert candidate_scores([np.array([True, False])])["ndcg@10"] == 1


def test_the_first_stage_has_what_it_missed_at_the_end():
    rankings = [
        first_ranking(np.array([letter in relevant for letter in found]), len(relevant))
        for _, relevant, found in QUERIES
    ]
    expected = {"ndcg@10": 0.3769765845, "mrr@10": 0.2777777778, "map": 0.2638888889}
    assert candidate_scores(rankings) == pytest.approx(expected)
    missed = first_ranking(np.array([False, True]), 2)
    assert missed.tolist() == [False, True, True]
    assert candidate_scores([missed])["map"] == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_ranks_beyond_ten_count_for_map_alone():
    is_relevant_C = np.arange(12) == 10
    found = candidate_scores([first_ranking(is_relevant_C, 1)])
    assert found == {"ndcg@10": 0, "mrr@10": 0, "map": pytest.approx(1 / 11)}


def test_two_stages():
    """A query whose second relevant document is missed, and one whose only one is."""
    documents = dict.fromkeys("abcdef", "")
    judged = {"1": {"b": 1, "f": 1}, "2": {"e": 1}}
    data = make_retrieval(documents, {"1": "", "2": ""}, judged)
    first_QxN = -np.arange(6.0) * np.ones((2, 1))
    ranked = list(nearest(data, lambda block: first_QxN[block], 3))
    assert np.array(ranked).tolist() == [[0, 1, 2], [0, 1, 2]]
    scores = [np.array([0.1, 0.9, 0.5])] * 2
    expected = {
        "first_ndcg@10": gain(2, 4) / gain(1, 2) / 2,
        "first_full_ndcg@10": gain(2, 4) / gain(1, 2) / 2,
        "first_mrr@10": 1 / 2 / 2,
        "first_map": (1 / 2 + 2 / 4) / 2 / 2,
        "ndcg@10": 1 / 2,
        "mrr@10": 1 / 2,
        "map": 1 / 2,
        "full_ndcg@10": gain(1, 4) / gain(1, 2) / 2,
        "recall@3": 1 / 2 / 2,
        "first_recall@3": 1 / 2 / 2,
    }
    assert two_stage_scores(data, ranked, scores, 3) == pytest.approx(expected)
