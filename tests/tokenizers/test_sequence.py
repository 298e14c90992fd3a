"""Special tokens around texts, and the truncation of pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.tokenizers.sequence import SequenceTemplate, truncated_lengths

BERT = SequenceTemplate(before=(101,), between=(102,), after=(102,))
ROBERTA = SequenceTemplate(before=(0,), between=(2, 2), after=(2,), num_segments=1)
A, B = np.array([11, 12, 13], np.int32), np.array([21, 22], np.int32)


def test_templates():
    row = BERT.join(A)
    assert (row.input_ids_L.tolist(), row.num_first, row.num_cut) == ([101, 11, 12, 13, 102], 5, 0)
    assert row.input_ids_L.dtype == np.int32
    row = BERT.join(A, B)
    assert row.input_ids_L.tolist() == [101, 11, 12, 13, 102, 21, 22, 102]
    assert (row.num_first, len(row.input_ids_L)) == (5, 8)
    row = ROBERTA.join(A, B)
    assert row.input_ids_L.tolist() == [0, 11, 12, 13, 2, 2, 21, 22, 2]
    assert row.num_first == len(row.input_ids_L)


def test_truncation_to_max_length():
    row = BERT.join(A, max_length=4)
    assert (row.input_ids_L.tolist(), row.num_cut) == ([101, 11, 12, 102], 1)
    row = BERT.join(A, B, max_length=6)
    assert (row.input_ids_L.tolist(), row.num_cut) == ([101, 11, 12, 102, 21, 102], 2)
    assert BERT.join(A, B, max_length=8).num_cut == 0


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 40))
def test_truncated_lengths_match_the_originals_loop(a, b, length):
    ours = truncated_lengths(a, b, length)
    while a + b > length:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    assert ours == (a, b)
    lengths = np.array([a]), np.array([b])
    assert [x.tolist() for x in truncated_lengths(*lengths, length)] == [[a], [b]]
