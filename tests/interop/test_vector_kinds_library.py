"""Sparse and multi-vector models in sentence-transformers, which gives the same vectors."""

import numpy as np
import pytest

from bert_jax.convert import convert
from bert_jax.interop import formats
from tests.interop.test_vector_kinds import GOLDEN
from tests.interop.vector_kinds import (
    DOCUMENTS,
    MULTI_VECTOR_FORMS,
    QUERIES,
    SPARSE_FORMS,
    scores,
    vectors,
    write_encoder,
)

pytestmark = pytest.mark.outside
library = pytest.importorskip("sentence_transformers")


def load(path):
    is_sparse = formats.describe(path).embedding.kind == "sparse"
    kind = library.SparseEncoder if is_sparse else library.MultiVectorEncoder
    return kind(str(path), device="cpu")


def assert_same(path, theirs):
    """Asserts that a directory gives the vectors and the scores of a model of the library."""
    both = []
    for texts, is_query in ((QUERIES, True), (DOCUMENTS, False)):
        encode = theirs.encode_query if is_query else theirs.encode_document
        both.append(encode(texts))
        found = vectors(path, texts, is_query)
        if isinstance(found, list):
            assert len({np.round(x, 3).tobytes() for x in found}) == len(texts)
            for ours, other in zip(found, both[-1], strict=True):
                np.testing.assert_allclose(ours, other.numpy(), atol=1e-5)
        else:
            np.testing.assert_allclose(found.toarray(), both[-1].to_dense().numpy(), atol=1e-5)
    expected = theirs.similarity(*both).numpy()
    np.testing.assert_allclose(scores(path), expected, rtol=1e-5)
    return expected


@pytest.mark.parametrize("form", [*SPARSE_FORMS, *MULTI_VECTOR_FORMS])
def test_every_form_gives_the_vectors_of_the_library(form, tmp_path):
    make = (SPARSE_FORMS | MULTI_VECTOR_FORMS)[form]
    path = make(write_encoder(tmp_path / "first"))
    theirs = load(path)
    np.testing.assert_allclose(assert_same(path, theirs), GOLDEN[form], rtol=1e-5)
    # What the library saves, and what we write for it.
    theirs.save(str(tmp_path / "saved"))
    assert_same(tmp_path / "saved", theirs)
    convert(str(path), str(tmp_path / "ours"), "sentence_transformers")
    assert_same(tmp_path / "ours", load(tmp_path / "ours"))
    assert_same(path, load(tmp_path / "ours"))
