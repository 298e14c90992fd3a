"""Packed rows hold the same sequences as single rows, and batches depend on nothing else."""

import dataclasses

import numpy as np
import pytest

from bert_jax.base.batch import shared_row_fields
from bert_jax.batches.evaluation_batches import evaluation_batches
from bert_jax.batches.packing import pack
from bert_jax.batches.stream import Stream
from tests.batches.fakes import PAD, FakeStore, make_documents, make_tokenizer
from tests.batches.single_rows import single_rows
from tests.batches.small_stream import PACKED, SINGLE, SPEC, STORE, TOKENIZER, stream
from tests.batches.test_stream import equal, unmasked

ROWS = [
    {},
    {"pair_labels": "order"},
    {"pair_labels": "three_way", "whole_word_masking": True},
    {"rows": "halves", "corruption": "electra"},
    {"rows": "segments", "corruption": "ngrams"},
    {"rows": "whole_sentences"},
    {"rows": "doc_sentences", "corruption": "roberta"},
    {"rows": "fitted_documents", "corruption": "modernbert"},
]


def best_fit(lengths, max_length, max_sequences):
    """Returns the contents of rows, packed one by one."""
    rows = []
    for length in sorted(lengths, reverse=True):
        open_rows = [r for r in rows if len(r) < max_sequences and sum(r) + length <= max_length]
        if open_rows:
            max(open_rows, key=sum).append(length)
        else:
            rows.append([length])
    return rows


@pytest.mark.parametrize("seed", range(40))
def test_packing_is_best_fit(seed):
    rng = np.random.default_rng(seed)
    max_length, max_sequences = int(rng.integers(5, 60)), int(rng.integers(2, 9))
    lengths = np.minimum(max_length, 1 + rng.geometric(0.1, rng.integers(1, 200)))
    order, sizes = pack(lengths, max_length, max_sequences)
    assert sorted(order) == list(range(len(lengths)))
    rows = np.split(lengths[order], np.cumsum(sizes)[:-1])
    assert all(row.sum() <= max_length and len(row) <= max_sequences for row in rows)
    assert len(rows) == len(best_fit(lengths.tolist(), max_length, max_sequences))
    # Of equal lengths, the first come first.
    for length in set(lengths):
        assert (np.diff(order[lengths[order] == length]) > 0).all()


@pytest.mark.parametrize("changes", ROWS, ids=lambda changes: "-".join(map(str, changes.values())))
def test_an_epoch_has_every_sequence_in_one_row(changes):
    packed, single = stream(**PACKED, **changes), stream(**SINGLE, **changes)
    assert packed.fields == shared_row_fields(single.fields)
    num_windows = len(packed.rows.windows(0))
    num_packed, num_single = (
        sum(s.examples.rows.count(0, window) for window in range(num_windows))
        for s in (packed, single)
    )
    assert num_packed < num_single

    def rows(batches):
        """Returns the encoder's inputs and the labels of each sequence, without masks."""
        names = ["token_type_ids", *(name for name in single.fields if name.endswith("labels"))]
        return sorted(
            (*ids[ids != PAD].tolist(), *np.concatenate([np.ravel(v) for v in values]).tolist())
            for batch in batches
            for ids, *values in zip(unmasked(batch), *(batch[name] for name in names), strict=True)
        )

    found = stream(**PACKED, **changes, batch_size=num_packed).batches(0, 1)
    expected = stream(**SINGLE, **changes, batch_size=num_single).batches(0, 1)
    assert rows(map(single_rows, found)) == rows(expected)


def test_lengths_of_a_batch_are_those_of_the_corpus():
    """Packing sorts sequences by their length; the rows are shuffled afterwards."""
    store = FakeStore(make_documents(seed=1, num_documents=400, most_sentences=25))
    spec = dataclasses.replace(SPEC, **PACKED, shuffle_sentences=10**6, batch_size=32)
    packed = Stream(store, make_tokenizer(5 + store.num_tokens), spec)
    num_batches = packed.examples.rows.count(0, 0) // 32
    masks = [batch["attention_mask"] for batch in packed.batches(0, num_batches)]
    sizes = np.stack([mask.max(axis=1) for mask in masks])
    # Means of 32 independent rows deviate by less than four standard errors.
    error = sizes.std() / np.sqrt(32)
    assert num_batches > 20 and error > 0
    assert np.abs(sizes.mean(axis=1) - sizes.mean()).max() < 4 * error


def test_predictions_that_do_not_fit_are_taken_back():
    limited = stream(**PACKED | {"max_predictions_per_seq": 9})
    num_limited = 0
    for few, many in zip(limited.batches(0, 20), stream(**PACKED).batches(0, 20), strict=True):
        # No token is hidden that is not predicted.
        assert np.array_equal(unmasked(few), unmasked(many))
        wanted = many["masked_lm_weights"].sum(axis=1)
        assert np.array_equal(few["masked_lm_weights"].sum(axis=1), np.minimum(wanted, 9))
        num_limited += (wanted > 9).sum()
    assert num_limited > 20


def test_evaluation_is_not_packed():
    spec = stream(**PACKED).spec
    single = dataclasses.replace(SPEC, **SINGLE)
    one, other = (next(evaluation_batches(STORE, TOKENIZER, s)) for s in (spec, single))
    assert equal(one, other)
