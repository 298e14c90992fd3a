"""Scores of odd judgements beside sentence-transformers' evaluators and pytrec_eval.

Similarities are small whole numbers with many ties. Some documents are missing, some queries have
no relevant document, and grades are from -1 to 3.
"""

import warnings
from unittest import mock

import numpy as np
import pytest

from bert_jax.tasks.retrieval import (
    cosine_similarities,
    make_retrieval,
    retrieval_scores,
    similarities,
)
from bert_jax.tasks.scores import regression_scores

torch = pytest.importorskip("torch")
st = pytest.importorskip("sentence_transformers")
evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
pytrec_eval = pytest.importorskip("pytrec_eval")

pytestmark = pytest.mark.outside


def vector_of(text):
    return [float(x) for x in text.split()]


class Vectors:
    """Stands for a model: a text has the numbers of its vector."""

    similarity_fn_name = "cosine"
    similarity = staticmethod(st.util.cos_sim)
    model_card_data = mock.Mock()

    def encode(self, texts, **options):
        return torch.tensor([vector_of(text) for text in texts])

    encode_query = encode_document = encode


def random_data(seed, num_documents, grades):
    rng = np.random.default_rng(seed)

    def texts(prefix, count):
        rows = rng.integers(-1, 2, (count, 3))
        return {f"{prefix}{n}": " ".join(map(str, row)) for n, row in enumerate(rows)}

    documents, queries = texts("d", num_documents), texts("q", 12)
    judged = {}
    for query in queries:
        # Ids beyond those of the corpus are of missing documents.
        ids = rng.choice(num_documents + 3, rng.integers(0, min(14, num_documents)), replace=False)
        judged[query] = {f"d{n}": int(rng.choice(grades)) for n in ids}
    judged["q0"], judged["missing"] = {"d0": 0}, {"d1": 1}
    return documents, queries, judged


def ours(documents, queries, judged):
    data = make_retrieval(documents, queries, judged)
    texts, number_N = data.distinct()
    sides = (np.array([vector_of(text) for text in side]) for side in (data.queries, texts))
    return data, similarities(*sides, number_N, "dot")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_documents", [4, 60, 300])
def test_ties_missing_documents_and_empty_relevance(seed, num_documents):
    documents, queries, judged = random_data(seed, num_documents, [-1, 0, 1, 1, 2])
    relevant = {q: {d for d, grade in of.items() if grade > 0} for q, of in judged.items()}
    dot = {"dot": st.util.dot_score}
    evaluator = evaluation.InformationRetrievalEvaluator(
        queries, documents, relevant, score_functions=dot, write_csv=False
    )
    expected = evaluator(Vectors())
    found = retrieval_scores(*ours(documents, queries, judged))
    found.pop("graded_ndcg@10", None)
    assert {f"dot_{name}": value for name, value in found.items()} == pytest.approx(
        expected, abs=1e-12
    )


@pytest.mark.parametrize("seed", range(4))
def test_grades(seed):
    """trec_eval orders ties by ids from the last: it gets the positions in our ranking."""
    documents, queries, judged = random_data(seed, 60, [-1, 0, 1, 2, 3])
    data, similarity = ours(documents, queries, judged)
    found = retrieval_scores(data, similarity)
    ids = sorted(documents)
    asked = [q for q in queries if any(grade > 0 for grade in judged[q].values())]
    ranked_QxN = np.argsort(-similarity(slice(None)), axis=1, kind="stable")
    run = {
        query: {ids[document]: float(-rank) for rank, document in enumerate(ranked_N)}
        for query, ranked_N in zip(asked, ranked_QxN.tolist(), strict=True)
    }
    names = {
        "graded_ndcg@10": "ndcg_cut_10",
        "precision@5": "P_5",
        "recall@10": "recall_10",
        "accuracy@3": "success_3",
    }
    measures = {"ndcg_cut.10", "P.5", "recall.10", "success.3"}
    results = pytrec_eval.RelevanceEvaluator(judged, measures).evaluate(run)
    for name, theirs in names.items():
        mean = np.mean([results[query][theirs] for query in asked])
        assert found[name] == pytest.approx(mean, abs=1e-12), name
    assert found["graded_ndcg@10"] != pytest.approx(found["ndcg@10"], abs=1e-3)


@pytest.mark.parametrize("scores", [[0.0, 1, 2, 2, 5], [3.0] * 5, [1.0, 1, 1, 1, 1 + 1e-9]])
@pytest.mark.parametrize("second", [["1 0", "1 1", "0 1", "2 1", "1 0"], ["1 0"] * 5])
def test_correlations(scores, second):
    """What the evaluator gives as NaN is None."""
    first = ["1 0", "1 0", "1 0", "1 0", "2 0"]
    evaluator = evaluation.EmbeddingSimilarityEvaluator(first, second, scores, write_csv=False)
    with warnings.catch_warnings(action="ignore"):
        expected = evaluator(Vectors())
    sides = (np.array([vector_of(text) for text in side], np.float32) for side in (first, second))
    found = regression_scores(np.array(scores), cosine_similarities(*sides))
    for name in ("spearman", "pearson"):
        value = expected[f"{name}_cosine"]
        if np.isnan(value):
            assert found[name] is None
        else:
            assert found[name] == pytest.approx(value, abs=1e-6)
