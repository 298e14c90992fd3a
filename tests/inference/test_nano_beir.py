"""Models of all kinds on the data sets of NanoBEIR: the table, the file, and the library."""

import json

import numpy as np
import pytest

from bert_jax.interop import formats
from tests import runs
from tests.inference.kinds import PROMPTS, make_multi_vector, make_sparse, without_biases
from tests.interop.small_bert import make_finetuned, make_pretrained
from tests.refusals import command
from tests.tasks.test_beir import write_table

MODELS = {
    "dense": (lambda: without_biases(make_pretrained()), "huggingface"),
    "sparse": (lambda: make_sparse(PROMPTS), "sentence_transformers"),
    "static": (lambda: make_sparse(PROMPTS, static_queries=True), "sentence_transformers"),
    "multi_vector": (
        lambda: make_multi_vector(PROMPTS, skip_words=("e", "##e")),
        "sentence_transformers",
    ),
    "mean": (
        lambda: make_multi_vector(similarity="mean_maxsim", expansion="attended"),
        "sentence_transformers",
    ),
    "ranker": (lambda: make_finetuned("sequence_classification", ()), "huggingface"),
}
WORDS = ["a", "b", "cab", "head", "bad", "the", "d", "e", "f g", "h i j"]
SETS = ("FiQA2018", "NQ", "ArguAna")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The models, and data sets with blank documents and with rankings of BM25."""
    folder = tmp_path_factory.mktemp("nano")
    for name, (make, kind) in MODELS.items():
        formats.write(make(), folder / name, kind)
    rng = np.random.default_rng(0)
    for name in SETS:
        documents, queries = (
            [
                {"_id": f"{x}{n}", "text": " ".join(rng.choice(WORDS, rng.integers(3, 7)))}
                for n in range(count)
            ]
            for x, count in (("d", 40), ("q", 8))
        )
        ids = [row["_id"] for row in documents]
        found = {row["_id"]: rng.permutation(ids)[:12].tolist() for row in queries}
        tables = {
            "corpus": [*documents, {"_id": "blank", "text": ""}],
            "queries": queries,
            "qrels": [
                {"query-id": q, "corpus-id": id}
                for q, ranked in found.items()
                for id in {*rng.choice(ids, 3), *rng.choice(ranked, 2)}
            ],
            "bm25": [{"query-id": q, "corpus-ids": ranked} for q, ranked in found.items()],
        }
        for part, rows in tables.items():
            write_table(folder / "data" / part / f"Nano{name}-00000-of-00001.parquet", rows)
    return folder


def evaluate(folder, model, *arguments):
    line = f"evaluate --model={folder}/{model} --retrieval={folder}/data --output={folder}/out.json"
    printed = runs.succeed(runs.python(" ".join([line, *arguments])))
    return json.loads((folder / "out.json").read_text()), printed


def row_of(printed, name):
    (line,) = (line for line in printed.splitlines() if f"│ {name} " in line)
    return [cell.strip() for cell in line.split("│")[2:-1]]


def test_a_row_for_each_data_set_and_the_mean(folder):
    found, printed = evaluate(folder, "sparse")
    names = [f"Nano{name}" for name in sorted(SETS)]
    assert list(found)[:3] == names and printed.count("1 blank texts of") == 3
    for key in ("ndcg@10", "bm25_ndcg@10", "recall@10", "corpus_active_dims", "avg_flops"):
        mean = np.mean([found[name][key] for name in names])
        assert found[f"NanoBEIR_mean_{key}"] == pytest.approx(mean)
    assert not any("num_" in name or "graded" in name for name in found)
    for name in (*names, "mean"):
        own = found.get(name) or {
            key.removeprefix("NanoBEIR_mean_"): value for key, value in found.items()
        }
        scores = [f"{own[key]:.4f}" for key in ("ndcg@10", "bm25_ndcg@10")]
        sizes = [own[x] for x in ("query_active_dims", "corpus_active_dims", "avg_flops")]
        assert row_of(printed, name) == [*scores, *(f"{x:,.4g}" for x in sizes)]
    # One of the data sets, by its judgements, has the same scores.
    file = "qrels/NanoNQ-00000-of-00001.parquet"
    single, printed = evaluate(folder, "sparse", f"--retrieval={folder}/data/{file}")
    assert single == found["NanoNQ"]
    assert row_of(printed, "corpus active dims")[0] == f"{single['corpus_active_dims']:,.4g}"
    assert row_of(printed, "query sparsity ratio")[0] == f"{single['query_sparsity_ratio']:,.4g}"


@pytest.mark.parametrize("first", ["multi_vector", "sparse"])
def test_a_first_stage_of_another_kind(folder, first):
    found, printed = evaluate(folder, "ranker", f"--first={folder}/{first}", "--depth=12")
    assert list(found)[:2] == ["NanoFiQA2018", "NanoNQ"] and "NanoArguAna: left out" in printed
    alone, _ = evaluate(folder, first)
    for name in ("NanoFiQA2018", "NanoNQ"):
        ours, own = found[name], alone[name]
        assert ours["recall@12"] >= own["recall@10"] and ours["num_pairs"] == 8 * 12
        if ours["first_mrr@10"]:
            assert ours["first_mrr@10"] == pytest.approx(own["mrr@10"])
    mean = np.mean([found[name]["ndcg@10"] for name in ("NanoFiQA2018", "NanoNQ")])
    assert found["NanoBEIR_R12_mean_ndcg@10"] == pytest.approx(mean)


def test_what_is_refused(folder):
    line = f"--model={folder}/ranker", f"--retrieval={folder}/data"
    words = command("evaluate", *line, f"--first={folder}/ranker")
    assert "ranker, a reranker; it must be a model of embeddings" in words
    line = f"--model={folder}/multi_vector", f"--retrieval={folder}/data"
    words = command("evaluate", *line, "--pooling=cls")
    assert "pooling is 'cls': a multi-vector model such as" in words


@pytest.mark.outside
@pytest.mark.parametrize("model", MODELS)
def test_the_scores_of_sentence_transformers(folder, model, monkeypatch):
    import datasets
    from sentence_transformers import (
        CrossEncoder,
        MultiVectorEncoder,
        SentenceTransformer,
        SparseEncoder,
    )
    from sentence_transformers.cross_encoder.evaluation import CrossEncoderNanoBEIREvaluator
    from sentence_transformers.multi_vector_encoder.evaluation import MultiVectorNanoBEIREvaluator
    from sentence_transformers.sentence_transformer.evaluation import NanoBEIREvaluator
    from sentence_transformers.sparse_encoder.evaluation import SparseNanoBEIREvaluator

    def load(name, part, split):
        path = folder / "data" / part / f"{split}-00000-of-00001.parquet"
        return datasets.Dataset.from_parquet(str(path), cache_dir=str(folder / "cache"))

    monkeypatch.setattr(datasets, "load_dataset", load)
    make_model, make_evaluator = {
        "dense": (SentenceTransformer, NanoBEIREvaluator),
        "sparse": (SparseEncoder, SparseNanoBEIREvaluator),
        "static": (SparseEncoder, SparseNanoBEIREvaluator),
        "multi_vector": (MultiVectorEncoder, MultiVectorNanoBEIREvaluator),
        "mean": (MultiVectorEncoder, MultiVectorNanoBEIREvaluator),
        "ranker": (CrossEncoder, CrossEncoderNanoBEIREvaluator),
    }[model]
    names = [name.lower() for name in SETS]
    options = {"always_rerank_positives": False} if model == "ranker" else {}
    if model == "ranker":
        names.remove("arguana")
    theirs = make_evaluator(names, write_csv=False, **options)(
        make_model(str(folder / model), device="cpu")
    )
    found, _ = evaluate(folder, model)
    # Theirs is no mean, but that of all queries with all documents.
    theirs.pop("NanoBEIR_mean_avg_flops", None)
    for name, value in theirs.items():
        own = name.replace("base_", "first_")
        for similarity in ("cosine_", "dot_", "meanmaxsim_", "maxsim_"):
            own = own.replace(similarity, "")
        if not own.startswith("NanoBEIR"):
            of_set, _, own = own.replace("_R100", "").partition("_")
            assert found[of_set][own] == pytest.approx(value, abs=1e-5), name
        else:
            assert found[own] == pytest.approx(value, abs=1e-5), name
    assert len(theirs) in (18, 60, 79)
