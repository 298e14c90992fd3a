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


def test_the_modules_of_a_router(model, tmp_path):
    path = model("plain", {"mode": "mean"}, {})
    modules = list(library.SentenceTransformer(str(path), device="cpu").children())
    router = library.base.modules.Router({"query": modules, "document": modules})
    library.SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path))
    compare(tmp_path)
