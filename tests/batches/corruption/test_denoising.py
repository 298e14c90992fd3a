"""BART's corruption: its targets, and rows that a reader can check by hand."""

import dataclasses

import numpy as np
import pytest

from bert_jax.batches.corruption.denoising import Denoising, permuted_columns
from bert_jax.batches.random_keys import random_key
from bert_jax.batches.stream import Stream
from tests.batches.fakes import CLS, MASK, PAD, SEP, FakeStore, make_spec, make_tokenizer

KEY = random_key(3)
DOCUMENTS = [[3, 4, 2, 5, 1], [6, 6, 6], [1], [12, 2, 9, 1, 1, 3]] * 20
STORE = FakeStore(DOCUMENTS, cuts=(7, 30))
TOKENIZER = make_tokenizer(5 + STORE.num_tokens)
SPEC = make_spec(
    24,
    batch_size=40,
    rows="whole_sentences",
    corruption="denoising",
    short_seq_prob=0.0,
    masked_lm_prob=0.3,
    mask_fractions=(0.9, 0.0, 0.1),
)


def original_batch(**changes):
    """Returns the batch of a stream, and the same rows without corruption."""
    spec = dataclasses.replace(SPEC, **changes)
    batch = next(Stream(STORE, TOKENIZER, spec).batches(0, 1))
    plain = dataclasses.replace(spec, corruption="none")
    return batch, next(Stream(STORE, TOKENIZER, plain).batches(0, 1))


def test_the_decoder_gets_the_uncorrupted_row():
    batch, original = original_batch()
    ids, mask = original["input_ids"], original["attention_mask"]
    assert (batch["labels"] == ids).all()
    assert (batch["decoder_attention_mask"] == mask).all()
    for row, length in enumerate(mask.sum(axis=1)):
        expected = [SEP, *ids[row, : length - 1], *[PAD] * (24 - length)]
        assert batch["decoder_input_ids"][row].tolist() == expected
    assert {value.dtype for value in batch.values()} == {np.dtype("int32")}


def test_rows_keep_their_ends_and_only_text_of_the_row():
    batch, original = original_batch(mask_fractions=(1.0, 0.0, 0.0))
    lengths = batch["attention_mask"].sum(axis=1)
    assert (batch["attention_mask"] == (np.arange(24) < lengths[:, None])).all()
    assert (lengths < original["attention_mask"].sum(axis=1)).mean() > 0.3
    for row, before, length in zip(batch["input_ids"], original["input_ids"], lengths, strict=True):
        assert row[0] == CLS and row[length - 1] == SEP and not row[length:].any()
        text = row[1 : length - 1]
        assert MASK in text
        left = text[text != MASK]
        assert len(set(left)) == len(left) and set(left) <= set(before)


def test_sentences_of_the_store_move_as_a_whole():
    # One word of each row is masked.
    batch, original = original_batch(masked_lm_prob=1e-9, mask_fractions=(1.0, 0.0, 0.0))
    starts = 5 + STORE.sentence_starts
    orders = set()
    for row, before in zip(batch["input_ids"], original["input_ids"], strict=True):
        before = before[before > MASK]
        sentences = [s.tolist() for s in np.split(before, np.flatnonzero(np.isin(before, starts)))]
        sentences = [s for s in sentences if s]
        text, at = row[row > MASK].tolist(), {}
        for number, sentence in enumerate(sentences):
            places = [text.index(i) for i in sentence if i in text]
            assert not places or places[-1] - places[0] == len(places) - 1
            if places:
                at[number] = places[0]
        orders.add(tuple(sorted(at, key=at.get)))
    assert {(0, 1), (1, 0)} <= orders and len(orders) > 8


def test_permutation_of_a_fraction():
    begins = np.zeros((4000, 9), bool)
    begins[:, [1, 3, 4, 6]] = True
    is_text = np.zeros_like(begins)
    is_text[:, 1:8] = True
    bits = np.random.default_rng(0).integers(0, 2**64, (2, *begins.shape), dtype=np.uint64)
    for ratio, at_most in ((0.0, 0), (0.25, 1), (0.3, 2), (0.75, 3), (1.0, 4)):
        column = permuted_columns(is_text, begins, ratio, *bits)
        assert (np.sort(column, axis=1) == np.arange(9)).all()
        assert (column[:, [0, 8]] == [0, 8]).all()
        orders = [tuple(c for c in row if c in (1, 3, 4, 6)) for row in column.tolist()]
        moved = [sum(a != b for a, b in zip(o, (1, 3, 4, 6), strict=True)) for o in orders]
        assert max(moved) == (at_most if at_most > 1 else 0)
        if ratio == 1.0:
            assert len(set(orders)) == 24
            counts = np.unique(orders, axis=0, return_counts=True)[1]
            assert abs(counts - 4000 / 24).max() < 5 * np.sqrt(4000 / 24)


def test_insertions_lengthen_a_row_up_to_its_room():
    """With so short spans, nearly every draw inserts a token."""
    batch, original = original_batch(poisson_lambda=0.05)
    lengths, before = (b["attention_mask"].sum(axis=1) for b in (batch, original))
    assert (lengths == 24).mean() > 0.5 and (before < 24).mean() > 0.5
    for row, old in zip(batch["input_ids"], original["input_ids"], strict=True):
        text = old[old > MASK]
        begins = TOKENIZER.is_word_start_V[text] | np.isin(text, 5 + STORE.sentence_starts)
        begins[0] = True
        word, num_words = np.cumsum(begins), begins.sum()
        num_hidden = num_words - len(np.unique(word[np.isin(text, row)]))
        assert 1 <= num_hidden <= np.ceil(0.3 * num_words)


@pytest.mark.parametrize("has_words", [False, True])
def test_words_are_those_of_the_store_or_the_vocabulary(has_words):
    """A word of four tokens is hidden as a whole."""
    ids = np.array([[CLS, *range(5, 25), SEP, PAD, PAD]] * 500, np.int32)
    marks = {"begins_sentence": np.zeros(ids.shape, bool)}
    begins_word = (ids - 5) % 4 == 0
    tokenizer = make_tokenizer(30)
    tokenizer.is_word_start_V = np.arange(30) % 4 == 1
    if has_words:
        tokenizer.is_word_start_V = np.ones(30, bool)
        marks["begins_word"] = begins_word
    batch = {"input_ids": ids, "attention_mask": (ids != PAD).astype(np.int32)} | marks
    spec = dataclasses.replace(SPEC, mask_fractions=(1.0, 0.0, 0.0))
    corrupted = Denoising(tokenizer, spec).corrupt(batch, KEY, 0)["input_ids"]
    for row in corrupted:
        left = row[row > MASK]
        assert len(left) in (12, 16) and (np.bincount((left - 5) // 4, minlength=5) % 4 == 0).all()
        # Two words are hidden, or one if a span ends with the row, behind a mask for each span.
    assert {1, 2} <= set((corrupted == MASK).sum(axis=1))
