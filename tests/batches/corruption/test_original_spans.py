"""The distributions of our spans and n-grams against SpanBERT's and ALBERT's programs.

benchmarks/golden/spans.py recorded 30 runs of each program over a corpus that it also
describes; tests/batches/test_original_parity.py explains the comparison.
"""

import hashlib

import numpy as np
import pytest

from benchmarks.golden import spans as golden
from bert_jax.batches.corruption.spans import NGRAMS, SPANS
from bert_jax.batches.random_keys import random_key
from bert_jax.batches.rows.segments import WholeSentenceRows
from tests.batches.fakes import FakeStore, make_spec
from tests.batches.test_original_parity import LEVEL, p_value
from tests.golden.inputs import read_json


@pytest.fixture(scope="module")
def recorded():
    return read_json("spans.json")


@pytest.fixture(scope="module")
def corpus():
    """Returns the tokenizer, the documents and a store of them."""
    tokenizer = golden.make_tokenizer()
    documents = golden.tokenized_corpus(tokenizer)
    tokens = golden.flat_tokens(documents)
    store = FakeStore([list(map(len, document)) for document in documents], tokens)
    store.token_counts = np.bincount(tokens, minlength=tokenizer.vocab_size)
    return tokenizer, documents, store


def test_rows_match_the_original(recorded, corpus):
    """Ours also include the sentences that SpanBERT drops before a long last sentence."""
    tokenizer, documents, store = corpus
    assert recorded["corpus"] == hashlib.sha256(store.tokens.astype("<i4").tobytes()).hexdigest()
    plan = WholeSentenceRows(
        store, tokenizer, make_spec(golden.MAX_SEQ_LENGTH, short_seq_prob=0.0)
    ).plan(0, 0)
    ours = {(int(s), int(s + n)) for s, n in zip(plan.start_N, plan.length_N, strict=True)}
    theirs = set(map(tuple, recorded["segments"]))
    assert theirs <= ours and len(theirs) > 1500
    sentences = [ids for document in documents for ids in document]
    for _, stop in ours - theirs:
        following = np.searchsorted(store.sentence_starts, stop)
        assert following + 1 in store.document_starts and len(sentences[following]) > 126


def our_runs(recorded, corpus, rules, rule, most_predictions):
    """Returns counts of as many runs as were recorded, over the same rows."""
    tokenizer, documents, store = corpus
    rows = golden.masked_rows(store.tokens, recorded["segments"], tokenizer)
    batch = {"input_ids": np.zeros((len(rows), golden.MAX_SEQ_LENGTH), np.int32)}
    for ids, row in zip(batch["input_ids"], rows, strict=True):
        ids[: len(row)] = row
    batch["attention_mask"] = (batch["input_ids"] != tokenizer.pad_id).astype(np.int32)
    corruption = rules(tokenizer, make_spec(max_predictions_per_seq=most_predictions), store)
    runs = []
    for seed in range(golden.NUM_RUNS):
        masked = corruption.corrupt(batch, random_key(seed), 0)
        weights = masked["masked_lm_weights"] > 0
        has = masked.get("span_weights", 0 * weights) > 0
        offsets = masked.get("span_offsets", weights)
        own = (
            {
                "original": row,
                "masked": masked["input_ids"][i],
                "positions": masked["masked_lm_positions"][i][weights[i]],
                "rule": rule(len(row)),
                "offsets": offsets[i][has[i]],
            }
            for i, row in enumerate(rows)
        )
        runs.append(golden.summarize(own, documents, tokenizer))
    return {name: np.array([run[name] for run in runs]) for name in runs[0]}


@pytest.fixture(scope="module")
def ours(recorded, corpus):
    return {
        "spans": our_runs(recorded, corpus, SPANS, golden.span_rule, 20),
        "ngrams": our_runs(recorded, corpus, NGRAMS, golden.albert_rule, golden.ALBERT_PREDICTIONS),
    }


@pytest.mark.parametrize("name", golden.STATISTICS)
@pytest.mark.parametrize("group", ["spans", "ngrams"])
def test_distribution_matches_the_original(recorded, ours, group, name):
    theirs = np.array(recorded[group][name])
    if name == "target_offset" and group == "ngrams":
        assert not theirs.any() and not ours[group][name].any()
        return
    p = p_value(ours[group][name], theirs)
    assert p > LEVEL, f"{name}: p = {p}"
