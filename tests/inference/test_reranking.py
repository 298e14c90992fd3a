"""Two stages of retrieval: BM25 or embeddings, whose first documents a reranker ranks again."""

import json
import warnings

import numpy as np
import pytest

import bert_jax
from bert_jax.convert import convert
from bert_jax.heads import reranker
from bert_jax.inference.reranking import score_reranking
from bert_jax.interop import formats
from bert_jax.tasks.beir import read_retrieval
from bert_jax.tasks.candidate_scores import candidate_scores, first_ranking
from bert_jax.tasks.retrieval import (
    bm25_similarities,
    nearest,
    similarities,
)
from tests import runs
from tests.interop.small_bert import LABELS, make_finetuned, make_pretrained
from tests.refusals import command
from tests.tasks.test_beir import write

WORDS = ["a", "b", "cab", "head", "bad", "the", "d", "e", "f g", "h i j"]
RNG = np.random.default_rng(0)
DOCUMENTS, QUERIES = (
    {f"{prefix}{n}": " ".join(RNG.choice(WORDS, RNG.integers(3, 7))) for n in range(count)}
    for prefix, count in (("d", 40), ("q", 8))
)
# The last query has a relevant document that is not in the corpus.
JUDGED = [(query, f"d{n}") for query in QUERIES for n in RNG.choice(40, 4, replace=False)]
JUDGED.append(("q7", "d99"))
DEPTH = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reranker, a model of embeddings, and the data."""
    folder = tmp_path_factory.mktemp("reranking")
    assert len({*DOCUMENTS.values()}) == len(DOCUMENTS)
    formats.write(make_finetuned("sequence_classification", ()), folder / "ranker", "huggingface")
    formats.write(make_pretrained(), folder / "dense", "huggingface")
    write(folder / "data", DOCUMENTS, QUERIES, [f"{query} {id} 1" for query, id in JUDGED])
    return folder


def evaluate(folder, *arguments):
    line = f"evaluate --model={folder}/ranker --retrieval={folder}/data --output={folder}/out.json"
    printed = runs.succeed(runs.python(" ".join([line, *arguments])))
    return json.loads((folder / "out.json").read_text()), printed


def ids_of(ranked):
    ids = sorted(DOCUMENTS)
    return [[ids[number] for number in numbers_R] for numbers_R in ranked]


def test_the_first_documents_of_bm25(folder, monkeypatch):
    found, printed = evaluate(folder, f"--depth={DEPTH}")
    data = read_retrieval(folder / "data", "--retrieval")
    ranked = list(nearest(data, bm25_similarities(data), DEPTH))
    bert = bert_jax.load(folder / "ranker")
    expected = []
    for query, ids in zip(QUERIES, ids_of(ranked), strict=True):
        best = bert.rerank(QUERIES[query], [DOCUMENTS[id] for id in ids])
        expected.append(np.array([(query, ids[x.index]) in JUDGED for x in best]))
    for name, value in candidate_scores(expected).items():
        assert found[name] == pytest.approx(value), name
        difference = value - found[f"first_{name}"]
        row = next(line for line in printed.splitlines() if f" {name} " in line)
        assert f"{value:.4f}" in row and f"{difference:+.4f}" in row
    counts = [sum(query == other for other, _ in JUDGED) for query in QUERIES]
    full = candidate_scores(map(first_ranking, expected, counts))["ndcg@10"]
    assert found["full_ndcg@10"] == pytest.approx(full) and full < found["ndcg@10"]
    recall = np.mean([x.sum() / count for x, count in zip(expected, counts, strict=True)])
    assert found["recall@12"] == found["first_recall@12"] == pytest.approx(recall)
    assert "only full_ndcg@10 counts them in both columns" in printed
    counts = {"num_queries": 8, "num_documents": 40, "num_pairs": 8 * DEPTH}
    assert found.items() >= (counts | {"depth": DEPTH, "first": "bm25"}).items()
    # The pairs are scored in parts.
    monkeypatch.setattr(reranker, "_CHUNK", 7)
    advanced = []
    in_parts = score_reranking(bert, data, ranked, DEPTH, advanced.append)
    assert sum(advanced) == 8 * DEPTH and len(advanced) == 14
    assert in_parts == {name: found[name] for name in in_parts}


def test_the_first_documents_of_a_model(folder):
    """Its prompts are put before queries and documents."""
    bert = bert_jax.load(folder / "dense")
    prompts = {"query_prompt": "the a ", "document_prompt": "b ", "pooling": "mean"}
    convert(str(folder / "dense"), str(folder / "prompts"), "sentence_transformers", **prompts)
    found, _ = evaluate(folder, f"--first={folder}/prompts", "--depth=5")
    data = read_retrieval(folder / "data", "--retrieval")
    queries, documents = (
        bert.encode([prompt + text for text in texts])
        for prompt, texts in (("the a ", data.queries), ("b ", data.documents))
    )
    similarity = similarities(queries, documents, np.arange(40), "cosine")
    ids = ids_of(nearest(data, similarity, 5))
    counts = [sum(query == other for other, _ in JUDGED) for query in QUERIES]
    rankings = [
        np.array([(query, id) in JUDGED for id in of_query])
        for query, of_query in zip(QUERIES, ids, strict=True)
    ]
    expected = candidate_scores(map(first_ranking, rankings, counts))
    assert {name: found[f"first_{name}"] for name in expected} == pytest.approx(expected)
    assert found["num_pairs"] == 40 and found["first"] == f"{folder}/prompts"


@pytest.mark.parametrize(
    ("model", "flag", "words"),
    [
        ("ranker", "--pooling=cls", "--pooling has no effect on a reranker; leave it out"),
        ("ranker", "--query_prompt=x", "--query_prompt has no effect on a reranker"),
        ("ranker", "--first=nowhere", "nowhere"),
        ("dense", "--first=bm25", "--first has no effect on a model that is no reranker"),
        ("labels", "--depth=5", "--depth has no effect on a model that is no reranker"),
    ],
)
def test_flags_without_effect(model, flag, words, folder):
    if model == "labels" and not (folder / model).exists():
        labeled = make_finetuned("sequence_classification", LABELS)
        formats.write(labeled, folder / model, "huggingface")
    assert words in command(
        "evaluate", f"--model={folder}/{model}", f"--retrieval={folder}/data", flag
    )


def test_warnings_count_all_pairs_once(folder, monkeypatch):
    bert = bert_jax.load(folder / "ranker")
    monkeypatch.setattr(reranker, "_CHUNK", 2)
    pairs = [("a b", "c " * length) for length in (50, 3, 60, 2)] + [("?", "! " * 70)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reranker.pair_scores(bert, pairs)
    unknown, cut = (str(x.message) for x in caught)
    assert cut == "3 of 5 texts are truncated to 40 tokens" and "are unknown" in unknown


@pytest.mark.outside
@pytest.mark.parametrize("depth", [3, DEPTH, 40])
def test_the_scores_of_sentence_transformers(folder, depth):
    """Some queries have relevant documents that were missed, and some have no other."""
    evaluation = pytest.importorskip("sentence_transformers.cross_encoder.evaluation")
    from sentence_transformers import CrossEncoder

    data = read_retrieval(folder / "data", "--retrieval")
    ranked = list(nearest(data, bm25_similarities(data), depth))
    samples = [
        {
            "query": QUERIES[query],
            "positive": [DOCUMENTS.get(id, "missing") for other, id in JUDGED if other == query],
            "documents": [DOCUMENTS[id] for id in ids],
        }
        for query, ids in zip(QUERIES, ids_of(ranked), strict=True)
    ]
    num_found = [sum(x in sample["positive"] for x in sample["documents"]) for sample in samples]
    assert 0 in num_found or depth > 3
    evaluator = evaluation.CrossEncoderRerankingEvaluator(
        samples, always_rerank_positives=False, write_csv=False
    )
    theirs = evaluator(CrossEncoder(str(folder / "ranker"), device="cpu"))
    found = score_reranking(bert_jax.load(folder / "ranker"), data, ranked, depth)
    for name, value in theirs.items():
        assert found[name.replace("base_", "first_")] == pytest.approx(value, abs=1e-9), name
    assert len(theirs) == 6
