"""Sparse and multi-vector models in sentence-transformers, which gives the same vectors."""

import numpy as np
import pytest

import bert_jax
from bert_jax.convert import convert
from bert_jax.interop import formats
from tests.interop.small_tokenizers import modernbert_like
from tests.interop.test_vector_kinds import FORMS, GOLDEN
from tests.interop.vector_kinds import (
    DOCUMENTS,
    QUERIES,
    RUNS,
    encoded,
    inference_free,
    late_interaction,
    run,
    splade,
    write_encoder,
)
from tests.tokenizers.test_family_parity import read, unpack

pytestmark = pytest.mark.outside
library = pytest.importorskip("sentence_transformers")


def load(path):
    is_sparse = formats.describe(path).embedding.kind == "sparse"
    kind = library.SparseEncoder if is_sparse else library.MultiVectorEncoder
    return kind(str(path), device="cpu")


def assert_same(path, theirs):
    """Asserts that a directory gives the vectors and the scores of a model of the library."""
    *ours, scores = encoded(path)
    both = theirs.encode_query(QUERIES), theirs.encode_document(DOCUMENTS)
    for found, expected in zip(ours, both, strict=True):
        if isinstance(found, list):
            assert len({np.round(x, 3).tobytes() for x in found}) == len(found)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other.numpy(), atol=1e-5)
        else:
            # The library names tokens as its tokenizer stores them: in lowercase, or as bytes.
            decoded = bert_jax.load(path).decode(found), theirs.decode(expected)
            weights = [[[weight for _, weight in x] for x in of_one] for of_one in decoded]
            for one, other in zip(*weights, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
            expected = expected.to_dense().numpy()
            np.testing.assert_allclose(found.toarray(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(scores, theirs.similarity(*both).numpy(), rtol=1e-5)
    return scores


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_vectors_of_the_library(form, tmp_path):
    path = FORMS[form](write_encoder(tmp_path / "first"))
    theirs = load(path)
    np.testing.assert_allclose(assert_same(path, theirs), GOLDEN[form], rtol=1e-5)
    # What the library saves, and what we write for it.
    theirs.save(str(tmp_path / "saved"))
    assert_same(tmp_path / "saved", theirs)
    convert(str(path), str(tmp_path / "ours"), "sentence_transformers")
    assert_same(path, load(tmp_path / "ours"))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_written_for_the_library(name, tmp_path):
    path = run(tmp_path / "run", name)
    convert(str(path), str(tmp_path / "st"), "sentence_transformers")
    assert_same(path, load(tmp_path / "st"))


@pytest.mark.parametrize("family", ["distilbert", "modernbert", "xlm_roberta"])
def test_other_families(family, tmp_path):
    models = unpack(tmp_path / "models")
    roberta, xlm_roberta = (read(name, models) for name in ("roberta", "xlm_roberta"))
    tokenizers = {"modernbert": modernbert_like(roberta), "xlm_roberta": xlm_roberta}
    for make in (splade, inference_free, late_interaction):
        path = tmp_path / make.__name__
        path = make(write_encoder(path, family=family, tokenizer=tokenizers.get(family)))
        theirs = load(path)
        assert_same(path, theirs)
        convert(str(path), str(tmp_path / f"{make.__name__}_again"), "sentence_transformers")
        assert_same(path, load(tmp_path / f"{make.__name__}_again"))
