"""Keys, permutations and draws: their randomness, and their independence of batching."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.batches.random_keys import draw_rows, permuted, random_key

KEY = np.array([7, 9], dtype=np.uint64)


def test_different_parts_give_different_keys():
    keys = [random_key(*parts) for parts in ((0, 1), (1, 0), (2**32, 0), (0, 2**32), (0, 1, 0))]
    assert len({tuple(key) for key in keys}) == len(keys)
    assert np.array_equal(random_key(3, 4), random_key(3, 4))


@settings(max_examples=50)
@given(
    first=st.integers(0, 2**62),
    columns=st.integers(1, 50),
    cut=st.integers(0, 9),
)
def test_draws_do_not_depend_on_the_split(first, columns, cut):
    full = draw_rows(KEY, first, 9, columns)
    parts = [draw_rows(KEY, first, cut, columns), draw_rows(KEY, first + cut, 9 - cut, columns)]
    assert np.array_equal(full, np.concatenate(parts))
    assert full.shape == (9, columns) and full.dtype == np.uint64
    assert len(np.unique(full)) == full.size  # 64 bits: none twice


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 65, 1000])
def test_permuted_is_a_permutation(size):
    for seed in range(20):
        key = np.array([seed, 3], np.uint64)
        permutation = permuted(np.arange(size), size, key)
        assert permutation.dtype == np.int64
        assert sorted(permutation.tolist()) == list(range(size))
        # A single index is mapped to the same number.
        assert permuted(np.array([size - 1]), size, key) == permutation[-1]


def test_all_permutations_are_equally_likely():
    draws = 6_000
    keys = np.random.default_rng(0).integers(0, 2**64, (draws, 2), np.uint64)
    found = Counter(tuple(permuted(np.arange(4), 4, key).tolist()) for key in keys)
    assert len(found) == 24
    expected = draws / 24
    chi_square = sum((count - expected) ** 2 / expected for count in found.values())
    # 23 degrees of freedom: p = 1e-3.
    assert chi_square < 49.7
