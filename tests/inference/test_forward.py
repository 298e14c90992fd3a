"""Batching texts into few shapes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.inference import forward

LENGTHS = st.lists(st.integers(2, 512), max_size=300)


@given(LENGTHS, st.sampled_from([64, 1024, 2**15]))
def test_every_text_is_in_one_batch_and_fits(lengths, batch_tokens):
    plan = list(forward.text_batches(lengths, max_length=512, batch_tokens=batch_tokens))
    assert sorted(i for indices, _ in plan for i in indices) == list(range(len(lengths)))
    for indices, (rows, length) in plan:
        assert 0 < len(indices) <= rows
        assert rows * length <= max(batch_tokens, length)
        assert length == forward.bucket(max(lengths[i] for i in indices), 512)


def test_the_shapes_are_few_and_the_padding_is_small():
    lengths = np.random.default_rng(0).gamma(2.0, 20.0, 4000).astype(int).clip(3, 512).tolist()
    plan = list(forward.text_batches(lengths, max_length=512, batch_tokens=1024))
    shapes = [shape for _, shape in plan]
    # One shape of full batches for each length, and one for the remaining texts.
    assert len(set(shapes)) <= len(forward.LENGTHS) + 1
    padded = sum(rows * length for rows, length in shapes)
    assert 1 - sum(lengths) / padded < 0.2
    # Outputs that are as wide as a vocabulary fit too.
    short = forward.text_batches([3] * 5000, max_length=512, batch_tokens=2**15)
    assert max(rows for _, (rows, _) in short) == 1024
