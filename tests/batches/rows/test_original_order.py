"""The distribution of sentence-order pairs against that of ALBERT's program.

benchmarks/golden/sentence_order.py recorded 30 runs of the program over a corpus that it
also describes; tests/batches/test_original_parity.py explains the comparison.
"""

import numpy as np
import pytest

from benchmarks.golden import sentence_order as golden
from bert_jax.batches.rows.pairs import OrderedPairRows
from tests.batches.fakes import FakeStore, make_spec, make_tokenizer
from tests.batches.test_original_parity import LEVEL, check_numbers, p_value
from tests.golden.inputs import read_json


def our_runs(builder):
    store = FakeStore(golden.documents())
    runs = []
    for seed in range(golden.NUM_RUNS):
        spec = make_spec(golden.MAX_SEQ_LENGTH, seed=seed)
        rows = builder(store, make_tokenizer(10), spec)
        plan = rows.plan(0, 0)
        batch = rows.assemble(plan)
        assert batch["sentence_order_labels"].dtype == np.int32
        runs.append(golden.summarize(zip(*plan[:4], batch["sentence_order_labels"], strict=True)))
    return {name: np.array([run[name] for run in runs]) for name in runs[0]}


@pytest.fixture(scope="module")
def ours():
    return our_runs(OrderedPairRows)


@pytest.fixture(scope="module")
def recorded():
    return read_json("sentence_order.json")


@pytest.mark.parametrize("name", golden.summarize([]))
def test_distribution_matches_the_original(recorded, ours, name):
    p = p_value(ours[name], np.array(recorded[name]))
    assert p > LEVEL, f"{name}: p = {p}"


def test_number_of_pairs_matches_the_original(recorded, ours):
    check_numbers(ours["kind_and_label"], recorded["kind_and_label"])
