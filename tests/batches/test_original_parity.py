"""The distributions of our pairs and masks against google-research/bert's program.

benchmarks/golden/original_pairs.py recorded 30 runs of the program over a corpus that
it also describes. Instances of one run are not independent (a document with a short target
length gives many), so runs are compared in a permutation test: if both programs draw
from the same distribution, it does not matter which of the 60 runs are labeled as ours. The
p-value is the fraction of random labelings whose histograms differ more than the true ones.
"""

import functools

import numpy as np
import pytest

from benchmarks.golden import original_pairs as golden
from bert_jax import tokenizers
from bert_jax.batches.stream import Stream
from tests.batches.fakes import FakeStore, make_spec
from tests.golden.inputs import read_json

NUM_RUNS = 30
# All seeds are fixed, so the p-values are always the same.
LEVEL = 1e-3
NUM_LABELINGS = 20_000


@pytest.fixture(scope="module")
def recorded():
    values = read_json("original_pairs.json")
    text = golden.corpus_text(golden.corpus())
    assert golden.fingerprint(text) == values.pop("corpus"), "recorded from another corpus"
    return {
        group: {name: np.array(runs) for name, runs in statistics.items()}
        for group, statistics in values.items()
    }


@pytest.fixture(scope="module")
def original(recorded):
    return recorded["single"]


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.from_file(
        "wordpiece", golden.VOCABULARY, lowercase=True, max_input_chars_per_word=200
    )


@pytest.fixture(scope="module")
def store(tokenizer):
    """Returns the corpus, tokenized by bert_jax."""
    documents = [tokenizer.encode_batch(sentences) for sentences in golden.corpus()]
    tokens = np.concatenate([ids for document in documents for ids in document])
    return FakeStore([[len(ids) for ids in document] for document in documents], tokens)


def our_runs(store, tokenizer, **changes):
    """Returns counts of NUM_RUNS runs, each with as many epochs as a run of the original."""
    runs = []
    for seed in range(NUM_RUNS):
        sizes = {"max_predictions_per_seq": golden.MAX_PREDICTIONS, "seed": seed}
        spec = make_spec(golden.MAX_SEQ_LENGTH, **sizes, **changes)
        stream = Stream(store, tokenizer, spec)
        batches, first = [], 0
        for epoch in range(golden.DUPE_FACTOR):
            rows = stream.examples.rows
            assert len(rows.windows(epoch)) == 1
            plan = rows.plan(epoch, 0)
            batches.append(stream.build(plan, first))
            first += plan.a_start_N.size
        runs.append(golden.summarize(batches))
    return {name: np.array([run[name] for run in runs]) for name in runs[0]}


@pytest.fixture(scope="module")
def ours(store, tokenizer):
    return our_runs(store, tokenizer)


@pytest.fixture(scope="module")
def ours_by_words(store, tokenizer):
    return our_runs(store, tokenizer, whole_word_masking=True)


@functools.cache
def labelings(num_ours, num_theirs):
    """Returns the true labeling and random ones, [1 + NUM_LABELINGS, runs]."""
    is_ours = np.arange(num_ours + num_theirs) < num_ours
    random = np.random.default_rng(0).permuted(np.tile(is_ours, (NUM_LABELINGS, 1)), axis=1)
    return np.where(np.concatenate([[is_ours], random]), 1 / num_ours, -1 / num_theirs)


def p_value(one, other):
    """Returns the p-value for two groups of runs, int [30, bins], having the same distribution.

    The distance is that of Kolmogorov and Smirnov between the mean histograms.
    """
    runs = np.concatenate([one, other]).astype(float)
    runs /= runs.sum(axis=1, keepdims=True)
    signs = labelings(len(one), len(other))
    distances = np.abs(np.cumsum(signs @ runs, axis=1)).max(axis=1)
    # The tolerance is for rounding: many labelings give the same distance.
    return (distances[1:] >= distances[0] - 1e-12).mean()


STATISTICS = list(golden.summarize([]))


@pytest.mark.parametrize("name", STATISTICS)
def test_distribution_matches_the_original(original, ours, name):
    assert len(original[name]) == NUM_RUNS
    p = p_value(ours[name], original[name])
    assert p > LEVEL, f"{name}: p = {p}"


@pytest.mark.parametrize("name", [n for n in STATISTICS if n.startswith(golden.MASKING)])
def test_whole_word_masks_match_the_original(recorded, ours_by_words, name):
    assert len(recorded["whole_word"][name]) == NUM_RUNS
    p = p_value(ours_by_words[name], recorded["whole_word"][name])
    assert p > LEVEL, f"{name}: p = {p}"


def check_numbers(ours, theirs):
    """Compares the numbers of instances of two groups of runs, given histograms [30, bins]."""
    ours, theirs = (np.sum(runs, axis=1) for runs in (ours, theirs))
    error = np.sqrt((ours.var(ddof=1) + theirs.var(ddof=1)) / NUM_RUNS)
    # 3.29 standard errors: p = 1e-3, two-sided.
    assert abs(ours.mean() - theirs.mean()) < 3.29 * error
    assert error < 0.01 * theirs.mean(), "the counts vary too little for a test"


def test_number_of_instances_matches_the_original(original, ours):
    check_numbers(ours["is_random_next"], original["is_random_next"])
