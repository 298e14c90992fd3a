"""Invariants of sentence pairs; tests/batches/test_original_parity.py tests their distribution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.batches.random_keys import keyed_generator
from bert_jax.batches.rows.blocks import Block
from bert_jax.batches.rows.pairs import PairRows, ThreeWayPairRows, chunk_documents
from tests.batches.fakes import CLS, SEP, FakeStore, make_documents, make_spec, make_tokenizer


def planner_for(documents, cuts=(), **changes):
    store = FakeStore(documents, cuts=cuts)
    return store, PairRows(store, make_tokenizer(10), make_spec(**changes))


def block_of(store):
    """Returns all documents of a store as one block."""
    return Block(store.document_starts, store.sentence_starts, pool=None, first_in_pool=0)


@settings(max_examples=60)
@given(
    documents=st.lists(
        st.lists(st.integers(1, 40), min_size=1, max_size=25), min_size=1, max_size=8
    ),
    targets=st.lists(st.integers(2, 61), min_size=8, max_size=8),
    seed=st.integers(0, 2**32),
)
def test_chunks_cover_each_document_once_and_in_order(documents, targets, seed):
    store = FakeStore(documents)
    target_D = np.array(targets[: len(documents)])
    chunks = chunk_documents(keyed_generator(seed), block_of(store), target_D)
    tokens = store.sentence_starts
    for document in range(len(documents)):
        mine = chunks.document_N == document
        at, stop = store.document_starts[document], store.document_starts[document + 1]
        for first, end, a_end, is_random in zip(
            *(np.searchsorted(tokens, column[mine]).tolist() for column in chunks[1:4]),
            chunks.is_random_N[mine].tolist(),
            strict=True,
        ):
            assert first == at  # nothing skipped, nothing twice
            assert first < a_end <= end <= stop
            target = target_D[document]
            assert end == stop or tokens[end] - tokens[first] >= target
            assert end == first + 1 or tokens[end - 1] - tokens[first] < target
            if end == first + 1:
                assert is_random and a_end == end
            else:
                assert a_end < end
            # After a random B, the next chunk begins at the end of A.
            at = a_end if is_random else end
        assert at == stop


def test_spans_follow_the_rules_of_pairs():
    documents = make_documents(seed=3)
    store, planner = planner_for(documents, short_seq_prob=0.0)
    for epoch in range(5):
        plan = planner.plan(epoch, 0)
        a_end, b_end = plan.a_start_N + plan.a_length_N, plan.b_start_N + plan.b_length_N
        total = plan.a_length_N + plan.b_length_N
        assert plan.a_length_N.min() >= 1 and plan.b_length_N.min() >= 1 and total.max() <= 61
        a_document = store.document_of(plan.a_start_N)
        b_document = store.document_of(plan.b_start_N)
        # Each span lies in one document. A random B is in another document, a true B after A.
        assert (a_document == store.document_of(a_end - 1)).all()
        assert (b_document == store.document_of(b_end - 1)).all()
        assert ((a_document != b_document) == plan.is_random_N).all()
        follows = ~plan.is_random_N
        assert (a_end[follows] <= plan.b_start_N[follows]).all()
        # Rows below the limit are not truncated: spans are whole sentences, B follows A directly,
        # and the row ends with its document.
        whole = total < 61
        for ends in (plan.a_start_N, a_end, plan.b_start_N, b_end):
            assert np.isin(ends[whole], store.sentence_starts).all()
        assert (a_end[whole & follows] == plan.b_start_N[whole & follows]).all()
        document_ends = store.sentence_starts[store.document_starts[b_document + 1]]
        assert (b_end[whole] == document_ends[whole]).all()


def test_truncation_removes_from_front_or_back_with_equal_probability():
    # Each document is one sentence of 200 tokens. A keeps 31 or 30 of them, B the other number.
    store, planner = planner_for([[200]] * 3000, short_seq_prob=0.0)
    plan = planner.plan(0, 0)
    assert plan.is_random_N.all()
    for start, length, kept in (
        (plan.a_start_N, plan.a_length_N, 31),
        (plan.b_start_N, plan.b_length_N, 30),
    ):
        assert (length == kept).all()
        removed, front = 200 - kept, start % 200
        assert abs(front.sum() / (3000 * removed) - 0.5) < 4 * 0.5 / np.sqrt(3000 * removed)
        # Each token has its own coin: the variance is binomial.
        assert abs(front.var() / (removed / 4) - 1) < 4 * np.sqrt(2 / 3000)


def test_three_way_labels_are_a_third_each():
    store = FakeStore([[7] * 12] * 500 + [[5]] * 100)
    rows = ThreeWayPairRows(store, make_tokenizer(10), make_spec(31, short_seq_prob=0.0))
    assert rows.fields["sentence_order_labels"].high == 3
    plan = rows.plan(0, 0)
    labels = rows.assemble(plan)["sentence_order_labels"]
    documents = store.document_of(plan.a_start_N), store.document_of(plan.b_start_N)
    assert ((labels == 2) == (documents[0] != documents[1])).all()
    after = plan.a_start_N < plan.b_start_N
    assert after[labels == 0].all() and not after[labels == 1].any()
    # A chunk of one sentence, which ends a document or is a whole document, has a random B.
    starts = store.sentence_starts[store.document_starts[:-1]]
    assert (labels[np.isin(plan.a_start_N, starts[500:])] == 2).all()
    first = np.where(labels == 1, plan.b_start_N, plan.a_start_N)
    frequencies = np.bincount(labels[np.isin(first, starts[:500])], minlength=3)
    assert np.abs(frequencies / frequencies.sum() - 1 / 3).max() < 4 * np.sqrt(
        2 / 9 / frequencies.sum()
    )


@pytest.mark.parametrize("cuts", [(), (1, 3, 120, 190)], ids=["1", "5"])
def test_windows_contain_every_block_once_per_epoch(cuts):
    documents = make_documents(seed=5, num_documents=200) + [np.full(900, 9)]
    store, planner = planner_for(documents, cuts, shuffle_sentences=480)
    num_blocks = sum(map(len, planner.windows(0)))
    if cuts:
        assert not store.opened  # The number of blocks follows from the sizes of the parts.
    orders = []
    for epoch in range(3):
        windows = planner.windows(epoch)
        blocks = np.concatenate(windows)
        assert sorted(blocks) == list(range(num_blocks))
        orders.append(tuple(blocks))
        ours, all_blocks = [], []
        for window in range(len(windows)):
            plan = planner.plan(epoch, window)
            assert planner.count(epoch, window) == plan.a_start_N.size > 0
            assert (np.diff(plan.a_start_N) < 0).any()  # shuffled
            ours += zip(*(column.tolist() for column in plan), strict=True)
            for block, rng in planner._read(epoch, window):
                # A block lies in one part.
                ends = block.sentence_starts[[0, -1]] - [0, 1]
                assert np.diff(np.searchsorted(store.starts.tokens, ends, "right")) == 0
                part = planner.plan_block(block, rng)
                all_blocks += zip(*(column.tolist() for column in part), strict=True)
        assert sorted(ours) == sorted(all_blocks)
        assert set(store.document_of(np.array([p[0] for p in ours]))) == set(range(201))
    assert len(set(orders)) == 3
    sentences = [planner._blocks.sentences_B[w].sum() for w in planner.windows(0)]
    assert 0.8 * 480 <= np.median(sentences) <= 1.25 * 480  # about the requested size
    assert len(planner_for(documents)[1].windows(0)) == 1


def test_random_b_of_a_store_in_parts_is_from_the_window():
    documents = make_documents(seed=2, num_documents=60)
    store, planner = planner_for(documents, (20, 21, 45), shuffle_sentences=160)
    assert len(planner.windows(0)) >= 4
    for window in range(len(planner.windows(0))):
        plan = planner.plan(0, window)
        own, other = (store.document_of(p) for p in (plan.a_start_N, plan.b_start_N))
        assert ((own != other) == plan.is_random_N).all()
        assert set(other) <= set(own)


@pytest.mark.parametrize("cuts", [(), range(1, 6)], ids=["one block", "a block a document"])
def test_random_b_is_uniform_over_other_documents_and_their_sentences(cuts):
    """All blocks are in one window."""
    documents = [[7] * n for n in (1, 2, 3, 4, 5, 6)]
    store, planner = planner_for(documents, cuts, max_seq_length=10)
    counts = np.zeros((6, 21))
    for epoch in range(500):
        plan = planner.plan(epoch, 0)
        own = store.document_of(plan.a_start_N)[plan.is_random_N]
        np.add.at(counts, (own, plan.b_start_N[plan.is_random_N] // 7), 1)
    document_of_sentence = np.repeat(np.arange(6), np.arange(1, 7))
    for own in range(6):
        assert not counts[own, document_of_sentence == own].any()
        share = 1 / 5 / np.arange(1, 7)[document_of_sentence]
        expected = np.where(document_of_sentence == own, 0, share) * counts[own].sum()
        assert (np.abs(counts[own] - expected) <= 4.5 * np.sqrt(expected)).all()


def test_a_window_of_one_document_draws_from_the_next_block():
    store, planner = planner_for([[7]] * 5, range(1, 5), shuffle_sentences=1)
    order = np.concatenate(planner.windows(0))
    for window in range(5):
        plan = planner.plan(0, window)
        assert (plan.a_start_N // 7).tolist() == [order[window]]
        assert (plan.b_start_N // 7).tolist() == [order[(window + 1) % 5]]


def test_every_block_has_a_document():
    # Documents that are longer than several blocks lie at both ends of a part.
    documents = [[1] * 90, [1], [1], [1] * 9, *[[1]] * 4, [1], *[[1] * 50] * 3]
    for cuts in ((8,), (3, 4, 9), range(1, 12)):
        store, planner = planner_for(documents, cuts, shuffle_sentences=64)
        blocks = [block for w in range(len(planner.windows(0))) for block, _ in planner._read(0, w)]
        assert min(block.num_documents for block in blocks) > 0
        starts = np.concatenate([b.sentence_starts[b.document_starts[:-1]] for b in blocks])
        assert sorted(starts) == store.sentence_starts[store.document_starts[:-1]].tolist()


def test_assembled_rows():
    store, planner = planner_for([[3, 4], [2], [5, 5, 5]], max_seq_length=12, short_seq_prob=0.0)
    plan = planner.plan(0, 0)
    rows = planner.assemble(plan)
    for row, (a, n, b, m, is_random, _) in enumerate(zip(*plan, strict=True)):
        tokens = [CLS, *(5 + np.arange(a, a + n)), SEP, *(5 + np.arange(b, b + m)), SEP]
        padding = [0] * (12 - len(tokens))
        assert rows["input_ids"][row].tolist() == tokens + padding
        assert rows["token_type_ids"][row].tolist() == [0] * (n + 2) + [1] * (m + 1) + padding
        assert rows["attention_mask"][row].tolist() == [1] * len(tokens) + padding
        assert rows["next_sentence_labels"][row] == int(is_random)
    assert {v.dtype for v in rows.values()} == {np.dtype(np.int32)}
