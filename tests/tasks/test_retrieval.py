"""Retrieval: the scores of sentence-transformers, similarities, and BM25 by its formula."""

import math

import numpy as np
import pytest
from scipy import sparse

from bert_jax.tasks.beir import read_retrieval
from bert_jax.tasks.retrieval import (
    bm25_similarities,
    make_retrieval,
    retrieval_scores,
    similarities,
)
from tests.golden.inputs import read_golden, section
from tests.tasks.test_beir import write


def ones(ids):
    return dict.fromkeys(ids, 1.0)


def test_scores_are_those_of_sentence_transformers():
    """Most similarities are equal to others, and one query has more relevant documents than k."""
    golden = read_golden("embeddings")
    given, expected = section(golden, "inputs"), section(golden, "ranking")
    queries_QxD, documents_NxD = given["ranked_queries"], given["ranked_documents"]
    data = make_retrieval(
        {str(n): str(n) for n in range(len(documents_NxD))},
        {str(q): "" for q in range(len(queries_QxD))},
        {str(q): ones(map(str, np.flatnonzero(row))) for q, row in enumerate(given["relevant"])},
    )
    assert data.num_left_out == np.sum(~given["relevant"].any(axis=1)) > 0
    asked_Q = given["relevant"].any(axis=1)
    order_N = [int(text) for text in data.documents]
    found = retrieval_scores(
        data, lambda block: queries_QxD[asked_Q][block] @ documents_NxD[order_N].T
    )
    assert found.keys() == expected.keys() and len(found) == 15
    for name, value in expected.items():
        assert found[name] == pytest.approx(float(value), abs=1e-12), name


def test_few_documents_and_blocks_of_queries(monkeypatch):
    judged = {"1": ones("x"), "2": ones("y")}
    data = make_retrieval({"x": "", "y": ""}, {"1": "", "2": ""}, judged)
    similarity_QxN = np.array([[0.5, 0.5], [0.9, 0.1]])
    for block in (2**24, 2):
        monkeypatch.setattr("bert_jax.tasks.retrieval._BLOCK", block)
        found = retrieval_scores(data, lambda rows: similarity_QxN[rows])
        # Of equal similarities, the lower id is first.
        assert found["accuracy@1"] == 0.5 and found["recall@10"] == 1
        assert found["mrr@10"] == found["map@100"] == (1 + 1 / 2) / 2
        assert found["ndcg@10"] == pytest.approx((1 + 1 / math.log2(3)) / 2)


def test_bm25_by_its_formula(tmp_path):
    data = read_retrieval(write(tmp_path), "--retrieval")
    assert data.queries == ["cat", "dog 猫"] and data.num_left_out == 2
    found_QxN = bm25_similarities(data)(slice(0, 2))
    lengths_N = np.array([5, 2, 4, 1])

    def weights(counts, num_documents):
        counts_N = np.array(counts)
        norm_N = 1.2 * (0.25 + 0.75 * lengths_N / lengths_N.mean())
        rarity = math.log(1 + (4 - num_documents + 0.5) / (num_documents + 0.5))
        return rarity * counts_N / (counts_N + norm_N)

    expected = [weights([2, 0, 0, 0], 1), weights([0, 1, 2, 0], 2) + weights([0, 0, 2, 0], 1)]
    np.testing.assert_allclose(found_QxN, expected)
    assert data.relevant == [{0: 1}, {1: 1, 2: 2}]


def test_grades_have_a_score_of_their_own():
    """By hand: the ranking is c, a, b of the grades 1, 2, 0; the missing x has the grade 3."""
    judged = {"1": {"a": 2, "c": 1, "x": 3}}
    data = make_retrieval({"a": "", "b": "", "c": ""}, {"1": ""}, judged)
    found = retrieval_scores(data, lambda rows: np.array([[0.5, 0.4, 0.9]]))
    gains = [1, 1 / math.log2(3), 1 / math.log2(4)]
    assert found["graded_ndcg@10"] == pytest.approx(
        (1 * gains[0] + 2 * gains[1]) / (3 * gains[0] + 2 * gains[1] + 1 * gains[2])
    )
    assert found["ndcg@10"] == pytest.approx((gains[0] + gains[1]) / sum(gains))
    for grade, is_graded in ((1.0, False), (0.5, True), (2.0, True)):
        alike = make_retrieval({"a": ""}, {"1": ""}, {"1": {"a": grade}})
        scores = retrieval_scores(alike, lambda rows: np.ones((1, 1)))
        assert ("graded_ndcg@10" in scores) == is_graded


def test_the_document_of_a_query_is_left_out_on_request():
    """The first of the ranking. Its judgement still counts, as in BEIR."""
    documents = {f"{n:03d}": "" for n in range(150)}
    queries, judged = {"000": "", "q": ""}, {"000": ones(["000", "100"]), "q": ones(["001"])}

    def scores(skip_own):
        data = make_retrieval(documents, queries, judged, skip_own)
        assert data.own == [0 if skip_own else -1, -1]
        return retrieval_scores(data, lambda rows: np.tile(-np.arange(150), (2, 1)))

    assert scores(False)["mrr@10"] == (1 + 1 / 2) / 2
    # The other document of the query is the hundredth then.
    assert scores(True)["mrr@10"] == (0 + 1 / 2) / 2
    assert scores(True)["map@100"] == (1 / 100 / 2 + 1 / 2) / 2
    few = make_retrieval({"a": "", "b": ""}, {"a": ""}, {"a": ones("b")}, skip_own=True)
    assert retrieval_scores(few, lambda rows: np.array([[2, 1]]))["mrr@10"] == 1


@pytest.mark.parametrize("kind", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("num_documents", [5, 17, 40])
def test_copies_have_equal_similarities(kind, num_documents):
    """In a product of matrices, the columns of equal vectors may differ in their last bits."""
    rng = np.random.default_rng(0)
    documents = {f"{n}": f"text {n % 3}" for n in range(num_documents)}
    data = make_retrieval(documents, {"q": ""}, {"q": ones("3")})
    texts, number_N = data.distinct()
    texts_TxD = rng.standard_normal((3, 384)).astype(np.float32)
    for num_queries in (1, 2, 3, 8):
        queries_QxD = rng.standard_normal((num_queries, 384)).astype(np.float32)
        found = similarities(queries_QxD, texts_TxD, number_N, kind)(slice(0, num_queries))
        assert found.shape == (num_queries, num_documents)
        for text in texts:
            copies = found[:, [other == text for other in data.documents]]
            assert (copies == copies[:, :1]).all()


@pytest.mark.parametrize("tokens", [2**12, 7, 1])
def test_similarities_of_several_vectors_each(monkeypatch, tokens):
    """By their definition, in blocks of any size; texts and queries may have no vector."""
    monkeypatch.setattr("bert_jax.tasks.retrieval._TOKENS", tokens)
    rng = np.random.default_rng(0)
    queries, texts = (
        [rng.standard_normal((length, 8)).astype(np.float32) for length in lengths]
        for lengths in ((3, 1, 0, 5, 2), (2, 0, 6, 1, 1, 0, 9, 0))
    )
    number_N = np.array([0, 6, 6, 1, 3, 7])
    for kind in ("maxsim", "mean_maxsim"):
        expected = np.zeros((5, 6))
        for q, query in enumerate(queries):
            for n, number in enumerate(number_N):
                text = texts[number]
                score = (query @ text.T).max(axis=1).sum() if len(text) else -1e9
                expected[q, n] = score / max(len(query), 1) if kind == "mean_maxsim" else score
        found = similarities(queries, texts, number_N, kind)
        for block in (slice(0, 5), slice(1, 3), slice(2, 3)):
            np.testing.assert_allclose(found(block), expected[block], rtol=1e-5, atol=1e-6)
            assert found(block).dtype == np.float32
    assert (similarities(queries, [texts[1]], np.array([0]), "maxsim")(slice(3)) == -1e9).all()


def test_similarities_of_sparse_vectors():
    rng = np.random.default_rng(0)
    queries_QxV, texts_TxV = (
        np.where(rng.random((n, 50)) < 0.2, rng.random((n, 50)), 0).astype(np.float32)
        for n in (5, 7)
    )
    number_N = np.array([3, 0, 6, 3])
    found = similarities(*map(sparse.csr_array, (queries_QxV, texts_TxV)), number_N, "dot")
    for block in (slice(0, 5), slice(3, 4)):
        expected = (queries_QxV @ texts_TxV.T)[block][:, number_N]
        np.testing.assert_allclose(found(block), expected, rtol=1e-6)
        assert isinstance(found(block), np.ndarray) and found(block).dtype == np.float32
