"""Vectors beside those of sentence-transformers, in directories with unusual settings."""

import json
import warnings

import numpy as np
import pytest

import bert_jax
from bert_jax import convert
from tests.golden.inputs import real_package
from tests.interop.small_bert import edit_json

library = pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.outside

TEXTS = ["BERT reads both sides.", "", "s and more", "Café prices rose 4.5 % in 2019. " * 9]
# One is longer than a row; the last token of another is a different one before a text.
PROMPTS = ["query: ", "", "prompt", "a long prompt that fills the whole row " * 5]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A function that makes a directory with a pooling and settings."""
    root = tmp_path_factory.mktemp("models")

    def make(name, pooling, library_settings):
        if not (path := root / name).exists():
            options = {"pooling": pooling.pop("mode"), "normalize": True, "max_length": 32}
            source = str(real_package("minilm"))
            convert.convert(source, str(path), "sentence_transformers", **options)
            edit_json(path / "1_Pooling" / "config.json", **pooling)
            edit_json(path / "config_sentence_transformers.json", **library_settings)
        return path

    return make


def compare(path, **options):
    ours, theirs = bert_jax.load(path), library.SentenceTransformer(str(path), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Texts are cut.
        for prompt in PROMPTS:
            expected = theirs.encode(TEXTS, prompt=prompt, normalize_embeddings=bool(options))
            np.testing.assert_allclose(
                ours.encode(TEXTS, prompt=prompt, **options), expected, atol=1e-5
            )
    return ours, theirs


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_pooling_without_the_prompt(model, mode):
    settings = {
        "prompts": {"query": "Ask: ", "passage": "Text: "},
        "default_prompt_name": "passage",
    }
    path = model(f"no_prompt_{mode}", {"mode": mode, "include_prompt": False}, settings)
    ours, theirs = compare(path)
    for name in (None, "query", "passage"):
        found = ours.encode(TEXTS[:3], prompt_name=name)
        np.testing.assert_allclose(found, theirs.encode(TEXTS[:3], prompt_name=name), atol=1e-5)
    theirs.save(str(path / "again"))
    assert json.loads((path / "again/1_Pooling/config.json").read_text())["include_prompt"] is False


@pytest.mark.parametrize("options", [{}, {"normalize": True}])
def test_fewer_values(model, options):
    compare(model("cut", {"mode": "mean"}, {"truncate_dim": 100}), **options)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("cosine", {}),
        ("dot", {"prompts": {"query": "Ask: ", "document": "Text: "}}),
        ("euclidean", {"prompts": {"passage": "Text: "}, "default_prompt_name": "passage"}),
        ("manhattan", {"prompts": {"document": "Text: "}, "default_prompt_name": "document"}),
    ],
)
def test_queries_documents_and_their_similarity(model, kind, settings):
    path = model(kind, {"mode": "mean"}, settings | {"similarity_fn_name": kind})
    ours, theirs = bert_jax.load(path), library.SentenceTransformer(str(path), device="cpu")
    documents = [f"{text} {i}" for i, text in enumerate(TEXTS[:3] * 9)]
    queries_QxD = ours.encode_query(TEXTS[:3])
    np.testing.assert_allclose(queries_QxD, theirs.encode_query(TEXTS[:3]), atol=1e-5)
    prompted = ours.encode_query(TEXTS[:3], None, "x ")
    np.testing.assert_allclose(prompted, theirs.encode_query(TEXTS[:3], None, "x "), atol=1e-5)
    vectors_NxD = ours.encode_document(documents)
    if "passage" not in settings.get("prompts", ()):
        # The library would take passage next, but always has an empty document, which comes first.
        np.testing.assert_allclose(vectors_NxD, theirs.encode_document(documents), atol=1e-5)
    expected = theirs.similarity(queries_QxD, vectors_NxD)
    np.testing.assert_allclose(ours.similarity(queries_QxD, vectors_NxD), expected, atol=2e-5)
    found = ours.search(queries_QxD, vectors_NxD, top_k=5)
    other = library.util.semantic_search(
        queries_QxD, vectors_NxD, top_k=5, score_function=theirs.similarity
    )
    for one, two in zip(found, other, strict=True):
        scores = [[each["score"] for each in row] for row in (one, two)]
        np.testing.assert_allclose(*scores, atol=2e-5)
        assert {each["corpus_id"] for each in one} == {each["corpus_id"] for each in two}


def test_the_modules_of_a_router(model, tmp_path):
    path = model("plain", {"mode": "mean"}, {})
    modules = list(library.SentenceTransformer(str(path), device="cpu").children())
    router = library.base.modules.Router({"query": modules, "document": modules})
    library.SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path))
    compare(tmp_path)
