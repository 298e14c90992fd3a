"""Spans, n-grams and boundaries against plain transcriptions of the originals, row by row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.base.batch import MAX_SPAN_TARGETS
from bert_jax.batches.corruption.choose import random_columns, uniform, word_starts
from bert_jax.batches.corruption.masked_lm import span_boundaries
from bert_jax.batches.corruption.spans import (
    NGRAM_LENGTHS,
    SPAN_LENGTHS,
    choose_ngrams,
    choose_spans,
)
from bert_jax.batches.random_keys import draw_rows
from tests.batches.corruption.test_masked_lm import KEY, make_rows
from tests.batches.fakes import CLS, SEP, make_tokenizer


def draw(seed, length, rows=6, vocab_size=300):
    """Returns candidates, word starts and random bits of rows with two texts each."""
    ids, used = make_rows(rows, length, vocab_size, seed)
    is_candidate = (used != 0) & ~np.isin(ids, [CLS, SEP])
    starts = word_starts(is_candidate, make_tokenizer(vocab_size, seed).is_word_start_V[ids])
    return is_candidate, starts, draw_rows(KEY, seed, rows, 2 * length)


def number_of_words(bits, probabilities):
    return 1 + sum(uniform(bits) >= edge for edge in np.cumsum(probabilities)[:-1])


def words_of(is_candidate, is_start):
    """Returns the words of each text of a row, as lists of columns."""
    texts, before = [], False
    for column, inside in enumerate(is_candidate):
        if inside and not before:
            texts.append([])
        if inside and is_start[column]:
            texts[-1].append([])
        if inside:
            texts[-1][-1].append(column)
        before = inside
    return texts


def plain_spans(texts, order, lengths, quota):
    """The loop of SpanBERT's `PairWithSpanMaskingScheme.mask`, with anchors in a given order."""
    chosen = set()
    for anchor in order:
        if len(chosen) >= quota:
            break
        if anchor in chosen:
            continue
        words = next(text for text in texts if any(anchor in word for word in text))
        at = next(i for i, word in enumerate(words) if anchor in word)
        for column in [c for word in words[at : at + lengths[anchor]] for c in word]:
            if len(chosen) < quota:
                chosen.add(column)
    return sorted(chosen)


def plain_ngrams(texts, order, lengths, quota):
    """The loop of ALBERT's `create_masked_lm_predictions`, with first words in a given order."""
    chosen = []
    for column in order:
        words = next(text for text in texts if any(column in word for word in text))
        at = next(i for i, word in enumerate(words) if column == word[0])
        number = lengths[column]
        while number and len(chosen) + len(sum(words[at : at + number], [])) > quota:
            number -= 1
        ngram = sum(words[at : at + number], [])
        if not set(ngram) & set(chosen):
            chosen += ngram
    return sorted(chosen)


@pytest.mark.parametrize(
    "choose, plain, probabilities",
    [(choose_spans, plain_spans, SPAN_LENGTHS), (choose_ngrams, plain_ngrams, NGRAM_LENGTHS)],
)
@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    length=st.sampled_from([8, 16, 33, 64, 128]),
    fraction=st.sampled_from([0.05, 0.15, 0.6, 1.0]),
)
def test_choice_matches_the_original(choose, plain, probabilities, seed, length, fraction):
    is_candidate, is_start, bits = draw(seed, length)
    quota = np.ceil(fraction * is_candidate.sum(axis=1)).astype(np.int64)
    chosen = choose(is_candidate, is_start, quota, bits)
    anchors = is_candidate if choose is choose_spans else is_start
    columns = random_columns(anchors, bits[:, :length])
    for row in range(len(quota)):
        order = columns[: anchors[row].sum(), row].tolist()
        lengths = {c: number_of_words(bits[row, length + c], probabilities) for c in order}
        texts = words_of(is_candidate[row], is_start[row])
        expected = plain(texts, order, lengths, quota[row])
        assert np.flatnonzero(chosen[row]).tolist() == expected
        assert len(expected) == quota[row] or (choose is choose_ngrams)


def plain_boundaries(chosen, is_text):
    """Returns (left, right, offset, whether it counts) for the merged spans of `span_masking`."""
    boundaries, columns = {}, np.flatnonzero(chosen)
    for run in np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1):
        left, right = run[0] - 1, run[-1] + 1
        touches = left < 0 or right >= len(is_text) or not (is_text[left] and is_text[right])
        for offset, column in enumerate(run):
            has = not touches and offset < 15
            boundaries[column] = (left, right, offset, True) if has else (0, 0, 0, False)
    return [boundaries[column] for column in columns]


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), length=st.sampled_from([8, 33, 128]))
def test_boundaries_are_those_of_merged_spans(seed, length):
    is_text, _, _ = draw(seed, length)
    is_text[0] = True  # A row without special tokens.
    rng = np.random.default_rng(seed)
    # Long and short runs, some of them at the ends of texts.
    chosen = is_text & (rng.random((len(is_text), 1)) > rng.random((len(is_text), length)) ** 2)
    found = np.stack(span_boundaries(*np.nonzero(chosen), is_text), axis=1).tolist()
    expected = [
        b
        for row, text in zip(chosen, is_text, strict=True)
        if row.any()
        for b in plain_boundaries(row, text)
    ]
    assert found == [list(map(int, boundary)) for boundary in expected]
    assert MAX_SPAN_TARGETS == 15
