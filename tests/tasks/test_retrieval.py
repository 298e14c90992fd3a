"""Retrieval: the scores of sentence-transformers, BM25 by its formula, and folders of BEIR."""

import json
import math

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.tasks.retrieval import (
    bm25_similarities,
    make_retrieval,
    read_retrieval,
    retrieval_scores,
)
from tests.golden.inputs import read_golden, section

DOCUMENTS = {"a": "The cat sat. The cat!", "b": "a dog", "c": "猫 dog DOG 猫", "d": "sun"}
QUERIES = {"1": "cat", "2": "dog 猫", "3": "nothing known", "4": "sun"}


def write(folder, documents=DOCUMENTS, queries=QUERIES, qrels=("1 a 1", "2 c 2", "2 b 1", "4 d 0")):
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, texts in (("corpus", documents), ("queries", queries)):
        lines = [json.dumps({"_id": id, "text": text}) for id, text in dict(texts).items()]
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    rows = [row.split() for row in ("query-id corpus-id score", *qrels)]
    (folder / "qrels" / "test.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder


def test_scores_are_those_of_sentence_transformers():
    """Most similarities are equal to others, and one query has more relevant documents than k."""
    golden = read_golden("embeddings")
    given, expected = section(golden, "inputs"), section(golden, "ranking")
    queries_QxD, documents_NxD = given["ranked_queries"], given["ranked_documents"]
    data = make_retrieval(
        {str(n): str(n) for n in range(len(documents_NxD))},
        {str(q): "" for q in range(len(queries_QxD))},
        {str(q): set(map(str, np.flatnonzero(row))) for q, row in enumerate(given["relevant"])},
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
    data = make_retrieval({"x": "", "y": ""}, {"1": "", "2": ""}, {"1": {"x"}, "2": {"y"}})
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
    assert [row_N.tolist() for row_N in data.relevant] == [[0], [1, 2]]


def test_titles_and_other_splits(tmp_path):
    folder = write(tmp_path)
    line = json.dumps({"_id": 7, "title": "Cats", "text": "They sit.", "metadata": {}})
    (folder / "corpus.jsonl").write_text(line + "\n")
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n1\t7\t1\n")
    data = read_retrieval(folder / "qrels" / "dev.tsv", "--retrieval")
    assert (data.documents, data.queries) == (["Cats They sit."], ["cat"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qrels": ["1 x 1"]}, r"test.tsv:2: corpus has no 'x'"),
        ({"qrels": ["9 a 1"]}, r"test.tsv:2: queries has no '9'"),
        ({"documents": {"a": "x"}}, r"test.tsv:3: corpus has no 'c'"),
    ],
)
def test_folders_that_are_refused(tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        read_retrieval(write(tmp_path, **change), "--retrieval")
