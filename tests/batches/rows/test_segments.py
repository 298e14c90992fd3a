"""Single segments: every sentence once per epoch, in order, within the target length."""

import dataclasses

import numpy as np
import pytest

from bert_jax.batches.rows.segments import FittedDocumentRows, SegmentRows, WholeSentenceRows
from bert_jax.batches.stream import Stream
from tests.batches.fakes import CLS, SEP, FakeStore, make_documents, make_spec, make_tokenizer


def rows_of(documents, **changes):
    store = FakeStore(documents)
    tokenizer = make_tokenizer(5 + store.num_tokens)
    values = {"batch_size": 4, "rows": "segments", "corruption": "none", "shuffle_sentences": 100}
    spec = make_spec(**values | changes)
    return store, tokenizer, spec, SegmentRows(store, tokenizer, spec)


def packed_by_the_original(lengths, most):
    """Transcribes SpanBERT's `BlockDataset`; returns (first sentence, sentence after the last)."""
    segments, first = [], 0
    while first < len(lengths):
        if lengths[first] > most:
            first += 1
            continue
        end = first
        while end < len(lengths) and sum(lengths[first : end + 1]) <= most:
            end += 1
        segments.append((first, end))
        first = end
    return segments


def plans(rows, epoch=0):
    for window in range(len(rows.windows(epoch))):
        plan = rows.plan(epoch, window)
        assert rows.count(epoch, window) == len(plan.start_N)
        yield plan


@pytest.mark.parametrize("documents", [make_documents(seed=3), [[5, 9, 7] * 30]], ids=["40", "1"])
def test_segments_are_whole_sentences_of_one_document(documents):
    store, _, _, rows = rows_of(documents, short_seq_prob=0.0)
    spans = sorted(span for plan in plans(rows) for span in zip(*plan, strict=True))
    seen = np.zeros(store.num_tokens, int)
    for start, length in spans:
        assert 1 <= length <= 62
        seen[start : start + length] += 1
        assert store.document_of(start) == store.document_of(start + length - 1)
        if length < 62:
            # The segment is not truncated, so the document ends here.
            end = start + length
            assert start in store.sentence_starts
            document = store.document_of(start)
            assert end == store.sentence_starts[store.document_starts[document + 1]]
    assert seen.max() == 1


def test_whole_sentences_are_packed_as_in_spanbert():
    documents = [*make_documents(seed=5), [70], [63, 9], [9, 63], [62, 62, 1, 61, 1, 62]]
    store, tokenizer, spec, _ = rows_of(documents, short_seq_prob=0.0)
    rows = WholeSentenceRows(store, tokenizer, spec)
    found = sorted(span for plan in plans(rows) for span in zip(*plan, strict=True))
    expected = []
    for document, lengths in enumerate(documents):
        starts = store.sentence_starts[store.document_starts[document] :]
        for first, end in packed_by_the_original(list(lengths), most=62):
            expected.append((starts[first], starts[end] - starts[first]))
    assert found == expected
    assert sum(length == 62 for _, length in found) > 3
    assert store.num_tokens > sum(length for _, length in found)  # Long sentences are left out.


def test_documents_are_cut_only_where_a_row_is_full():
    store, tokenizer, spec, _ = rows_of([[1] * 97, [70, 60], [5] * 25, [3], [62], [63]])
    rows = FittedDocumentRows(store, tokenizer, spec)
    found = sorted(tuple(map(int, s)) for plan in plans(rows) for s in zip(*plan, strict=True))
    lengths = [62, 35, 62, 62, 6, 62, 62, 1, 3, 62, 62, 1]
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    assert found == list(zip(starts, lengths, strict=True))


def test_fitted_rows_have_every_token_once_an_epoch_and_little_padding():
    documents = make_documents(seed=7, num_documents=200, most_sentences=8)
    store, tokenizer, spec, _ = rows_of(
        documents, rows="fitted_documents", max_pairs_per_row=8, shuffle_sentences=400
    )
    stream = Stream(store, tokenizer, spec)
    num_rows = sum(stream.examples.rows.count(0, w) for w in range(len(stream.rows.windows(0))))
    (batch,) = Stream(store, tokenizer, dataclasses.replace(spec, batch_size=num_rows)).batches(
        0, 1
    )
    ids = batch["input_ids"]
    assert (np.sort(ids[ids > SEP]) - 5 == np.arange(store.num_tokens)).all()
    is_real = batch["attention_mask"] > 0
    assert is_real.mean() > 0.95 and np.median(is_real.sum(axis=1)) == 64
    for row, numbers in zip(ids, batch["attention_mask"], strict=True):
        for number in range(1, numbers.max() + 1):
            piece = row[numbers == number]
            assert piece[0] == CLS and piece[-1] == SEP
            assert (np.diff(piece[1:-1]) == 1).all()
            assert len(np.unique(store.document_of(piece[1:-1].astype(np.int64) - 5))) == 1
