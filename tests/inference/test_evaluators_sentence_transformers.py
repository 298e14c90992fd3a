"""A small model in an export, scored by `evaluate` and by sentence-transformers' evaluators."""

import json

import numpy as np
import pytest

import bert_jax
from bert_jax import convert
from bert_jax.inference.embeddings import score_pairs, score_retrieval
from bert_jax.interop import formats
from bert_jax.tasks.beir import read_retrieval
from bert_jax.tasks.retrieval import read_pairs
from tests.interop.small_bert import make_pretrained

library = pytest.importorskip("sentence_transformers")
evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")

pytestmark = pytest.mark.outside


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Writes a small model with prompts, in which no bias makes all vectors alike."""
    folder = tmp_path_factory.mktemp("model")
    pretrained = make_pretrained()
    for name, weights in pretrained.weights.items():
        if name.endswith(("bias", "scale")):
            pretrained.weights[name] = np.full_like(weights, name.endswith("scale"))
    formats.write(pretrained, folder / "hf", "huggingface")
    prompts = {"query_prompt": "the a ", "document_prompt": "b "}
    options = {"pooling": "mean", "normalize": True, "max_length": 24, **prompts}
    convert.convert(str(folder / "hf"), str(folder / "st"), "sentence_transformers", **options)
    return folder / "st"


def test_retrieval_with_copies_and_missing_documents(model, tmp_path):
    rng = np.random.default_rng(0)
    words = ["a", "b", "cab", "head", "bad", "the", "d", "e", "f g", "h i j"]

    def texts(prefix, count):
        return {
            f"{prefix}{n}": " ".join(rng.choice(words, rng.integers(1, 6))) for n in range(count)
        }

    documents, queries = texts("d", 30), texts("q", 8)
    # The longest texts are last in a batch: copies are in other batches too.
    documents |= {f"d{n + 30}": documents[f"d{n}"] for n in range(10)}
    judged = [(q, f"d{n}") for q in queries for n in rng.choice(45, 4, replace=False)]
    (tmp_path / "qrels").mkdir()
    for name, rows in (("corpus", documents), ("queries", queries)):
        lines = [json.dumps({"_id": id, "text": text}) for id, text in rows.items()]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t1" for q, d in judged)]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(lines))
    bert = bert_jax.load(model)
    found = score_retrieval(bert, read_retrieval(tmp_path, "--retrieval"), bert.embedding)
    relevant = {q: {d for other, d in judged if other == q} for q in queries}
    evaluator = evaluation.InformationRetrievalEvaluator(queries, documents, relevant)
    theirs = evaluator(library.SentenceTransformer(str(model), device="cpu"))
    # Their copies of a text have other vectors in another batch.
    for name, value in theirs.items():
        assert found[name.removeprefix("cosine_")] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("default", [None, "query"])
def test_similarity_has_the_default_prompt_or_none(model, tmp_path, default):
    settings = model / "config_sentence_transformers.json"
    stored = json.loads(settings.read_text()) | {"default_prompt_name": default}
    settings.write_text(json.dumps(stored))
    rows = [("a b c", "a b c", 5), ("a b", "a h e", 2.5), ("cab", "head", 1), ("d e", "f g", 0)]
    lines = ["sentence1\tsentence2\tscore", *("\t".join(map(str, row)) for row in rows)]
    (tmp_path / "sts.tsv").write_text("\n".join(lines))
    bert = bert_jax.load(model)
    found = score_pairs(bert, read_pairs(tmp_path / "sts.tsv", "--sts"), bert.embedding)
    assert found["prompt"] == ("the a " if default else "")
    evaluator = evaluation.EmbeddingSimilarityEvaluator(*map(list, zip(*rows, strict=True)))
    theirs = evaluator(library.SentenceTransformer(str(model), device="cpu"))
    for name in ("spearman", "pearson"):
        assert found[name] == pytest.approx(theirs[f"{name}_cosine"], abs=1e-5)
