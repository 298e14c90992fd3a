"""Which documents are held out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.heldout import HeldOut


@given(
    fraction=st.one_of(
        st.floats(1e-4, 0.5), st.sampled_from([0.05, 0.1, 0.15, 0.3, 0.4, 0.45, 0.5])
    ),
    number=st.integers(1, 3000),
)
def test_share_is_right_for_any_number_of_documents(fraction, number):
    chosen = sum(i in HeldOut(fraction) for i in range(number))
    assert abs(chosen - fraction * number) <= 1


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.4, 0.45, 1 / 3])
def test_the_choice_is_spread_evenly(fraction):
    chosen = [i for i in range(10_000) if i in HeldOut(fraction)]
    gaps = [b - a for a, b in zip(chosen[:-1], chosen[1:], strict=True)]
    assert max(gaps) < 2 * (1 / fraction + 1)
    # No parity or other short period of the corpus is favored.
    for period in (2, 3, 7):
        for phase in range(period):
            share = sum(i % period == phase for i in chosen) / len(chosen)
            assert share == pytest.approx(1 / period, abs=0.04)


def test_the_choice_does_not_change():
    assert [i for i in range(20) if i in HeldOut(0.4)] == [0, 3, 7, 8, 10, 13, 16, 19]
