"""Vectors of texts without padding."""

import io

import numpy as np
import pytest
from scipy import sparse

from bert_jax.tasks.vectors import active_dims, compact, joined, save_npz

# Two queries and three documents of a vocabulary of three, padded to four.
QUERIES = np.array([[1, 0, 2, 0], [0, 0, 3, 0]], np.float32)
DOCUMENTS = np.array([[0, 0, 1, 0], [0, 0, 0, 0], [4, 0, 5, 0]], np.float32)


def loaded(vectors):
    stream = io.BytesIO()
    save_npz(stream, vectors)
    stream.seek(0)
    return stream


def test_sparse_vectors():
    parts = [compact({"embeddings": x}, "sparse", 3) for x in (QUERIES, DOCUMENTS)]
    both = joined(parts)
    assert both.nnz == 6 and both.format == "csr" and both.dtype == np.float32
    found = sparse.load_npz(loaded(both))
    np.testing.assert_array_equal(found.toarray(), np.concatenate([QUERIES, DOCUMENTS])[:, :3])
    assert active_dims(*parts) == pytest.approx(
        {
            "query_active_dims": 1.5,
            "query_sparsity_ratio": 0.5,
            "corpus_active_dims": 1,
            "corpus_sparsity_ratio": 2 / 3,
            # Products of the queries with the documents: 2 and 1, 0, and 2 and 1.
            "avg_flops": (1 / 2) * (1 / 3) + 1 * (2 / 3),
        }
    )
    assert found[:2].shape == (2, 3)


def test_several_vectors_for_each_text():
    vectors = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    is_vector = np.array([[1, 0, 1, 0], [0, 0, 0, 0]], bool)
    found = compact({"embeddings": vectors, "is_vector": is_vector}, "multi_vector", 0)
    assert [x.shape for x in found] == [(2, 3), (0, 3)]
    # The padded array is not in memory.
    assert all(x.base is None for x in found)
    arrays = np.load(loaded(joined([found, found])))
    np.testing.assert_array_equal(arrays["starts"], [0, 2, 2, 4, 4])
    np.testing.assert_array_equal(arrays["vectors"], vectors[0, [0, 2, 0, 2]])


def test_dense_vectors_stay():
    assert compact({"embeddings": QUERIES}, "dense", 3) is QUERIES
    assert joined([QUERIES, DOCUMENTS]).shape == (5, 4)
