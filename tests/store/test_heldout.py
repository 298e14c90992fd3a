"""Which documents are held out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.store.heldout import HeldOut, choose
from bert_jax.text.corpus import Document


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


def divided(chosen, *texts, is_split=False):
    documents = (Document("x", 1, text, is_split) for text in texts)
    return [part for number, one in enumerate(documents) for part in chosen.divide(number, one)]


@pytest.mark.parametrize(
    ("text", "is_split", "end"),
    [
        # At a blank line, although a line, a sentence or a word begins nearer to 5 %.
        ("It is. " * 800 + "\n\n" + "Or so.\n" * 50, False, "Or so.\n" * 50),
        ("It is. " * 800 + "Or so.\n" * 50, False, "Or so.\n" * 43),
        ("no words " * 800 + "It is. " * 60, False, "It is. " * 55),
        ("word " * 800, False, "word " * 40),
        ("漢" * 8000, False, "漢" * 400),
        ("It is.\n" * 800, True, "It is.\n" * 40),
        # A short document has a quarter.
        ("One two. Three four. Five six. Seven.", False, "Seven."),
        ("Word", False, ""),
    ],
)
def test_ends_of_documents(text, is_split, end):
    chosen = choose([len(text)], 0.05)
    *first, last = divided(chosen, text, is_split=is_split)
    assert "".join(part.text for part in (*first, last)) == text
    assert (last.text if last.is_heldout else "") == end
    assert last.line == 1 + "".join(part.text for part in first).count("\n")


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.floats(1e-3, 0.5))
def test_some_text_is_always_held_out_and_most_is_not(sizes, fraction):
    texts = ["It is so. " * size for size in sizes]
    marked = divided(choose(list(map(len, texts)), fraction), *texts)
    assert "".join(part.text for part in marked) == "".join(texts)
    heldout = sum(len(part.text) for part in marked if part.is_heldout)
    assert heldout and len({part.is_heldout for part in marked}) == 2


def test_large_corpora_are_not_read_to_choose():
    def given():
        yield from [1] * 40
        raise AssertionError

    chosen = choose(given(), 0.05)
    assert not chosen.end_fraction and not chosen.description
    assert [i for i in range(40) if i in chosen.documents] == [
        i for i in range(40) if i in HeldOut(0.05)
    ]
