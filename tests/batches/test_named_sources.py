"""Streams of several named sources: shares, order, random documents, hosts, interruptions."""

import numpy as np
import pytest

from bert_jax.text.named_sources import repeats
from tests.batches.fakes import FakeStore, make_documents
from tests.batches.small_stream import stream

# English is about ten times as large as Bulgarian.
DOCUMENTS = [
    *make_documents(seed=8, num_documents=100, most_sentences=25),
    *make_documents(seed=9, num_documents=11, most_sentences=20),
]
STORE = FakeStore(DOCUMENTS, cuts=(30, 70, 100), sources=("en", "en", "en", "bg"))
STORE.tokens = np.full(STORE.num_tokens, 7)
BULGARIAN = int(STORE.starts.tokens[3])
NATURAL = 1 - BULGARIAN / STORE.num_tokens


def mixed(**changes):
    return stream(STORE, shuffle_sentences=128, **changes)


def plans(spec, epochs):
    rows = spec.examples.rows
    return [rows.plan(e, w) for e in range(epochs) for w in range(len(rows.windows(e)))]


@pytest.mark.parametrize("exponent", [1.0, 0.7, 0.0])
def test_shares_wanted_and_drawn(exponent):
    rows = mixed(sampling_exponent=exponent).examples.rows
    sizes = {"en": BULGARIAN, "bg": STORE.num_tokens - BULGARIAN}
    wanted = NATURAL**exponent / (NATURAL**exponent + (1 - NATURAL) ** exponent)
    epochs, read = 20, np.zeros(STORE.num_tokens)
    for epoch in range(epochs):
        for window in range(len(rows.windows(epoch))):
            for block, _ in rows._read(epoch, window):
                read[block.sentence_starts[0] : block.sentence_starts[-1]] += 1
    share = read[BULGARIAN:].sum() / read.sum()
    assert share == pytest.approx(wanted, rel=0.02)
    # Everything is read once an epoch on average, and each block of a source equally often.
    assert read.sum() == pytest.approx(epochs * STORE.num_tokens, rel=0.02)
    for part, name in ((read[:BULGARIAN], "en"), (read[BULGARIAN:], "bg")):
        assert part.max() - part.min() <= 1
        assert part.mean() == pytest.approx(epochs * repeats(sizes, exponent)[name] / 2**20, abs=1)


def test_each_window_has_each_source():
    rows = mixed(sampling_exponent=0.7).examples.rows
    for epoch in range(3):
        assert len(rows.windows(epoch)) > 5
        for window in rows.windows(epoch):
            assert set(rows._blocks.source_B[window]) == {0, 1}


@pytest.mark.parametrize("exponent", [0.7, 0.0])
def test_an_epoch_of_one_window_has_the_shares(exponent):
    """The large source is read less than once, but not left out of an epoch."""
    documents = [np.full(200, 20)] * 200 + [np.full(20, 20)] * 150
    store = FakeStore(documents, np.zeros(1), cuts=(200,), sources=("en", "bg"))
    rows = stream(store, shuffle_sentences=2**20, sampling_exponent=exponent).examples.rows
    wanted = 3 / 43 * rows.sources()["bg"]["repeats"]
    for epoch in range(10):
        (window,) = rows.windows(epoch)
        sentences = np.bincount(rows._blocks.source_B[window], rows._blocks.sentences_B[window])
        assert sentences[1] / sentences.sum() == pytest.approx(wanted, abs=0.06)


def test_a_random_document_is_of_the_same_source():
    for plan in plans(mixed(sampling_exponent=0.3), 3):
        in_a, in_b = plan.a_start_N >= BULGARIAN, plan.b_start_N >= BULGARIAN
        np.testing.assert_array_equal(in_a, in_b)
        own, other = STORE.document_of(plan.a_start_N), STORE.document_of(plan.b_start_N)
        np.testing.assert_array_equal(own != other, plan.is_random_N)


def test_readings_of_a_block_in_an_epoch_differ():
    rows = mixed(sampling_exponent=0.0).examples.rows
    block = rows.windows(0)
    numbers, counts = np.unique(np.concatenate(block), return_counts=True)
    assert counts.max() >= 4
    number = numbers[counts.argmax()]
    readings = [
        rows.plan_block(found, rng)
        for window in range(len(block))
        for at, (found, rng) in zip(block[window], rows._read(0, window), strict=True)
        if at == number
    ]
    assert len(readings) == counts.max()
    assert len({plan.is_random_N.tobytes() + plan.b_start_N.tobytes() for plan in readings}) > 1


def test_each_reading_of_a_block_is_planned_anew():
    rows = mixed(sampling_exponent=0.0).examples.rows
    drawn = {}
    for window in range(len(rows.windows(0))):
        for block, rng in rows._read(0, window):
            drawn.setdefault(int(block.sentence_starts[0]), []).append(rng.random())
    assert max(map(len, drawn.values())) > 2
    assert all(len(set(numbers)) == len(numbers) for numbers in drawn.values())
