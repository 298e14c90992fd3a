"""Retrieval by sentence embeddings: similarities, prompts, and the command."""

import json

import numpy as np
import pytest

from bert_jax.inference.bert import Bert
from bert_jax.inference.embeddings import score_retrieval
from bert_jax.interop import formats
from bert_jax.tasks.retrieval import make_retrieval, retrieval_scores, similarities
from tests import runs
from tests.golden.inputs import real_package
from tests.interop.small_bert import make_pretrained
from tests.tasks.test_beir import write

DOCUMENTS = {"a": "the cab", "b": "a b c d", "c": "e f g", "d": "h i j", "e": "j j a"}
QUERIES = {"1": "cab", "2": "g", "3": "a c e"}
RELEVANT = {"1": {"a"}, "2": {"c", "d"}, "3": {"b"}}


def test_similarities():
    rng = np.random.default_rng(0)
    queries, documents = rng.standard_normal((3, 4)), rng.standard_normal((5, 4))
    difference = queries[:, None] - documents
    norms = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(documents, axis=1)
    for kind, expected in (
        ("dot", queries @ documents.T),
        ("cosine", queries @ documents.T / norms),
        ("euclidean", -np.linalg.norm(difference, axis=2)),
        ("manhattan", -np.abs(difference).sum(2)),
    ):
        found = similarities(queries, documents, np.arange(5), kind)(slice(1, 3))
        np.testing.assert_allclose(found, expected[1:3], atol=1e-12)


def test_scores_use_the_prompts_of_both_sides():
    bert = Bert(make_pretrained())
    judged = {query: dict.fromkeys(documents, 1.0) for query, documents in RELEVANT.items()}
    data, counted = make_retrieval(DOCUMENTS, QUERIES, judged), []
    embedding = bert.embedding_with("mean", True, 20).with_prompts(query="the a ", passage="b ")
    found = score_retrieval(bert, data, embedding, counted.append)
    queries = bert.encode([f"the a {text}" for text in QUERIES.values()], normalize=True)
    documents = bert.encode([f"b {text}" for text in DOCUMENTS.values()], normalize=True)
    expected = retrieval_scores(data, lambda block: queries[block] @ documents.T)
    assert {name: found[name] for name in expected} == expected
    assert found["bm25_recall@1"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert (found["num_queries"], found["num_documents"], sum(counted)) == (3, 5, 8)
    assert score_retrieval(bert, data, bert.embedding)["ndcg@10"] != found["ndcg@10"]


def test_the_command(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    judged = [f"{q} {d} 1" for q, documents in RELEVANT.items() for d in sorted(documents)]
    write(tmp_path / "data", DOCUMENTS, QUERIES | {"4": "b"}, judged)
    output = tmp_path / "out.json"
    printed = runs.succeed(
        runs.python(
            f"evaluate --workdir={tmp_path}/hf --retrieval={tmp_path}/data --output={output}"
        )
    )
    results = json.loads(output.read_text())
    assert "1 queries without a relevant document are left out" in printed
    for name in ("ndcg@10", "bm25_ndcg@10", "map@100", "recall@3"):
        assert f"{results[name]:.4f}" in printed


@pytest.mark.slow
def test_the_scores_of_a_real_model_on_squad(shared_data, tmp_path):
    """The questions of SQuAD and its paragraphs, with the scores of sentence-transformers 6.2.0."""
    documents, queries, judged = {}, {}, []
    articles = json.loads((shared_data / "squad" / "squad-v1.1" / "dev-v1.1.json").read_text())
    for paragraph in (p for article in articles["data"] for p in article["paragraphs"]):
        document = documents.setdefault(paragraph["context"], f"{len(documents):05d}")
        queries |= {question["id"]: question["question"] for question in paragraph["qas"]}
        judged += [f"{question['id']} {document} 1" for question in paragraph["qas"]]
    write(tmp_path, {id: text for text, id in documents.items()}, queries, judged)
    line = f"evaluate --workdir={real_package('minilm')} --retrieval={tmp_path}"
    command = runs.python(f"{line} --max_length=256 --output={tmp_path}/out.json")
    runs.succeed(command, timeout=1200, **runs.OPTIMIZED)
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["num_queries"], found["num_documents"]) == (10570, 2067)
    assert found["ndcg@10"] == pytest.approx(0.7734, abs=1e-4)
    assert found["mrr@10"] == pytest.approx(0.7270, abs=1e-4)
    assert found["bm25_ndcg@10"] == pytest.approx(0.8527, abs=1e-4)
