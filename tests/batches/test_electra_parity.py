"""ELECTRA's rows and masks against statistics of the original; see benchmarks/golden/electra.py."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.golden import electra as original
from bert_jax.batches.corruption.masked_lm import ELECTRA
from bert_jax.batches.rows.halves import HalvesRows
from tests.batches.fakes import (
    CLS,
    MASK,
    PAD,
    SEP,
    FakeStore,
    make_documents,
    make_spec,
    make_tokenizer,
)
from tests.golden.inputs import read_json

RECORDED = read_json("electra.json")
SPEC = make_spec(
    original.LENGTH,
    max_predictions_per_seq=9,
    rows="halves",
    corruption="electra",
    short_seq_prob=0.05,
)


def rows_of(documents):
    store = FakeStore(documents)
    return store, HalvesRows(store, make_tokenizer(5 + store.num_tokens), SPEC)


def all_plans(rows, epoch):
    return [rows.plan(epoch, window) for window in range(len(rows.windows(epoch)))]


def test_row_lengths_match_the_original():
    """Compares counts, within five standard errors of the two samples combined."""
    _, rows = rows_of([[original.SENTENCE_LENGTH] * n for n in original.DOCUMENTS])
    ours, rounds = Counter(), original.ROUNDS
    for epoch in range(rounds):
        for plan in all_plans(rows, epoch):
            ours.update(zip(plan.a_length_N.tolist(), plan.b_length_N.tolist(), strict=True))
    theirs = {tuple(map(int, key.split(","))): n for key, n in RECORDED["rows"].items()}
    total = sum(theirs.values())
    assert abs(ours.total() / total - 1) < 0.005
    far = {
        key: (ours[key], theirs.get(key, 0))
        for key in ours.keys() | theirs.keys()
        if abs(ours[key] - theirs.get(key, 0)) > 5 * (ours[key] + theirs.get(key, 0) + 4) ** 0.5
    }
    assert not far


def test_mask_fractions_match_the_original():
    length, num_rows = original.LENGTH, 4000
    ids = np.array([[CLS, *range(5, 34), SEP, *range(34, 62), SEP, *[PAD] * 4]] * num_rows)
    batch = {"input_ids": ids.astype(np.int32), "attention_mask": (ids != PAD).astype(np.int32)}
    corruption = ELECTRA(make_tokenizer(100), SPEC, None)
    masked = corruption.corrupt(batch, np.array([7, 9], np.uint64), 0)
    recorded = RECORDED["masks"]
    assert masked["masked_lm_weights"].sum(axis=1).mean() == recorded["predictions"]
    chosen = masked["masked_lm_weights"].sum()
    fraction = recorded["mask_tokens"] / recorded["chosen"]
    error = (fraction * (1 - fraction) * (1 / chosen + 1 / recorded["chosen"])) ** 0.5
    assert abs((masked["input_ids"] == MASK).sum() / chosen - fraction) < 4 * error
    others = masked["input_ids"] != MASK
    assert (masked["input_ids"][others] == ids[others]).all()
    assert masked["input_ids"].shape == (num_rows, length)


@pytest.mark.parametrize("epoch", [0, 1])
def test_rows_are_consecutive_text_in_order(epoch):
    store, rows = rows_of(make_documents())
    for plan in all_plans(rows, epoch):
        batch = rows.assemble(plan)
        for i, ids in enumerate(batch["input_ids"]):
            a, b = int(plan.a_length_N[i]), int(plan.b_length_N[i])
            start = 5 + int(plan.a_start_N[i])
            middle = 5 + int(plan.b_start_N[i])
            expected = [CLS, *range(start, start + a), SEP]
            types = [0] * len(expected)
            if b:
                # A is truncated only if no token of B fits.
                assert middle == start + a
                expected += [*range(middle, middle + b), SEP]
                types += [1] * (b + 1)
            padding = [0] * (SPEC.max_seq_length - len(expected))
            assert ids.tolist() == expected + padding
            assert batch["token_type_ids"][i].tolist() == types + padding
            assert batch["attention_mask"][i].sum() == len(expected)
            first, last = store.document_of(np.array([start - 5, start - 6 + a + b]))
            assert first == last
