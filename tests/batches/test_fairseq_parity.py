"""RoBERTa's rows and masks against those recorded by benchmarks/golden/fairseq.py."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.golden import fairseq as golden
from bert_jax.batches.corruption import masked_lm
from bert_jax.batches.rows.packed import DocSentenceRows, FullSentenceRows
from tests.batches.fakes import CLS, SEP, FakeStore, make_spec, make_tokenizer
from tests.golden.inputs import read_json

SPEC = make_spec(golden.MAX_SEQ_LENGTH, max_predictions_per_seq=40)


@pytest.fixture(scope="module")
def recorded():
    return read_json("fairseq.json")


def rows_of_fairseq(store, slices):
    """Returns the rows that fairseq cuts from its token stream, truncated to MAX_SEQ_LENGTH."""
    stream, most = [], golden.MAX_SEQ_LENGTH
    stops = set(store.document_starts[1:].tolist())
    for sentence, (start, end) in enumerate(
        zip(store.sentence_starts[:-1], store.sentence_starts[1:], strict=True)
    ):
        stream += [*store.tokens[start:end].tolist(), SEP]
        stream += [SEP] * (sentence + 1 in stops)
    rows = [[CLS, *stream[start:end]] for start, end in slices]
    rows = [row if len(row) <= most else [*row[: most - 1], SEP] for row in rows]
    return [row for row in rows if row != [CLS, SEP]]


@pytest.mark.parametrize(
    "mode, builder", [("complete", FullSentenceRows), ("complete_doc", DocSentenceRows)]
)
def test_rows_match_fairseq(recorded, mode, builder):
    store = FakeStore(golden.documents())
    rows = builder(store, make_tokenizer(10), SPEC)
    plan = rows.plan(0, 0)
    batch = rows.assemble(plan)
    assert rows.count(0, 0) == len(plan.start_N)
    lengths = batch["attention_mask"].sum(axis=1)
    assert (batch["attention_mask"] == (np.arange(64) < lengths[:, None])).all()
    assert not batch["input_ids"][batch["attention_mask"] == 0].any()
    found = [batch["input_ids"][row, : lengths[row]].tolist() for row in np.argsort(plan.start_N)]
    expected = rows_of_fairseq(store, recorded[mode])
    if mode == "complete":  # bert_jax ends the last document too.
        expected[-1].append(SEP)
    assert found == expected
    assert len(found) > 400 and {len(row) for row in found} >= set(range(50, 65))
    assert any(row[1] == SEP for row in found) == (mode == "complete")


def our_masks(words, rules):
    tokenizer = SimpleNamespace(
        vocab_size=golden.VOCAB_SIZE,
        cls_id=golden.BEGIN,
        pad_id=golden.PAD,
        sep_id=golden.END,
        unk_id=3,
        mask_id=golden.MASK,
    )
    ids, is_word_start_V = golden.masked_rows()
    tokenizer.begins_word = lambda ids: is_word_start_V[ids]
    spec = dataclasses.replace(SPEC, whole_word_masking=words)
    batch = {"input_ids": ids.astype(np.int32), "attention_mask": np.ones_like(ids)}
    masked = rules(tokenizer, spec, None).corrupt(batch, np.array([1, 2], np.uint64), 0)
    chosen = np.zeros(ids.shape, bool)
    row, slot = np.nonzero(masked["masked_lm_weights"])
    chosen[row, masked["masked_lm_positions"][row, slot]] = True
    return golden.summarize(ids, masked["input_ids"], chosen, is_word_start_V)


def largest_z_score(one, other):
    """Returns the largest difference between two histograms, in standard errors."""
    one, other = np.array(one, float), np.array(other, float)
    fraction = (one + other) / (one.sum() + other.sum())
    error = np.sqrt(fraction * (1 - fraction) * (1 / one.sum() + 1 / other.sum()))
    distance = np.abs(one / one.sum() - other / other.sum())
    return (distance[error > 0] / error[error > 0]).max(initial=0.0)


@pytest.mark.parametrize("group", ["tokens", "words"])
def test_mask_distribution_matches_fairseq(recorded, group):
    ours = our_masks(group == "words", masked_lm.ROBERTA)
    assert ours.pop("changed_but_not_chosen") == [0]
    for name, counts in ours.items():
        # The tokens of a word share a coin, so their outcomes vary more.
        limit = 8 if (group, name) == ("words", "outcome") else 4.5
        assert largest_z_score(counts, recorded[group][name]) < limit, name
    bert = our_masks(group == "words", masked_lm.BERT)
    different = {name for name in ours if largest_z_score(bert[name], recorded[group][name]) > 10}
    assert different >= {"tokens", "words", "position", "random_id"}
    assert ("same_coin_in_a_word" in different) == (group == "words")
