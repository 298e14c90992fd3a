"""The rates and the masks of masked diffusion, in training and on held-out rows."""

import dataclasses
import itertools

import numpy as np
import pytest

from bert_jax.base.batch import HELD_OUT_RATES
from bert_jax.batches.corruption.diffusion import LEAST_RATE, Diffusion, HeldOutDiffusion
from bert_jax.batches.evaluation_batches import evaluation_batches
from bert_jax.batches.random_keys import random_key
from tests.batches.fakes import CLS, MASK, PAD, SEP, make_spec, make_tokenizer
from tests.batches.small_stream import SPEC, STORE, TOKENIZER, stream

ROWS = {"corruption": "diffusion", "rows": "full_sentences", "max_seq_length": 64}
KEY = random_key(1, 2)


def rows_of_text(number, length):
    ids = np.random.default_rng(0).integers(5, 300, (number, length), dtype=np.int32)
    ids[:, 0], ids[:, -2], ids[:, -1] = CLS, SEP, PAD
    return {"input_ids": ids, "attention_mask": (ids != PAD).astype(np.int32)}


def test_rates_are_equally_far_apart_in_every_batch():
    corruption = Diffusion(make_tokenizer(300), make_spec(batch_size=16))
    times = corruption.times(KEY, 0, 16 * 500).reshape(500, 16)
    assert times.min() > 0 and times.max() <= 1
    gaps = np.diff(np.sort(times, axis=1), axis=1)
    np.testing.assert_allclose(gaps, 1 / 16, atol=1e-12)
    # The offset of a batch, less than a sixteenth, is uniform over batches.
    place = np.sort(times.min(axis=1) * 16)
    assert np.abs(place - (np.arange(500) + 0.5) / 500).max() < 1.63 / np.sqrt(500)
    # The rate of a row does not depend on the rows that are made with it.
    np.testing.assert_array_equal(corruption.times(KEY, 37, 3), times.ravel()[37:40])


@pytest.mark.parametrize("packed", [1, 4])
def test_masks_and_weights(packed):
    options = {"rows": "fitted_documents", "max_pairs_per_row": packed} if packed > 1 else {}
    for batch in stream(**ROWS | options).batches(0, 20):
        ids, original, weights = (
            batch[name] for name in ("input_ids", "original_ids", "mask_weights")
        )
        is_masked = ids != original
        assert (ids[is_masked] == MASK).all() and not (original == MASK).any()
        # All tokens but [CLS] may be masked, [SEP] too.
        np.testing.assert_array_equal(
            weights > 0, (batch["attention_mask"] > 0) & (original != CLS)
        )
        assert not is_masked[weights == 0].any()
        for row, number in itertools.product(range(len(ids)), range(1, packed + 1)):
            of_sequence = weights[row][batch["attention_mask"][row] == number]
            # One rate in a sequence.
            if of_sequence.size:
                assert len({*of_sequence.tolist()}) == 2 and of_sequence.max() <= 1 / LEAST_RATE


def test_only_answers_are_masked():
    batch = rows_of_text(50, 20)
    batch["is_answer"] = np.tile(np.arange(20) >= 12, (50, 1)).astype(np.int32)
    corrupt = Diffusion(make_tokenizer(300), make_spec(batch_size=10)).corrupt
    masked = corrupt(batch, KEY, 0)
    changed = masked["input_ids"] != batch["input_ids"]
    assert not changed[:, :12].any() and changed[:, 12:].any(axis=0).all()
    np.testing.assert_array_equal(masked["mask_weights"] > 0, batch["is_answer"] > 0)


@pytest.mark.parametrize("kind", [Diffusion, HeldOutDiffusion])
@pytest.mark.parametrize("of_mask", [lambda n: 1.0 + 0 * n, lambda n: n, lambda n: 1 / (1 + n)])
def test_the_estimate_of_the_bound_is_unbiased(kind, of_mask):
    """A token of value v costs v * of_mask(n) if it is masked with n - 1 others of its row.

    With n uniform from 1 to L, the bound is the mean of L / n * sum of the costs (Nie et al. 2025,
    equation 6), so sum of v times the mean of of_mask(n).
    """
    length, number = 13, 40_000
    batch = rows_of_text(number, length + 2)
    value = np.random.default_rng(1).random(length + 2)
    masked = kind(make_tokenizer(300), make_spec(batch_size=100)).corrupt(batch, KEY, 0)
    is_masked = masked["input_ids"] != batch["input_ids"]
    cost = value * of_mask(is_masked.sum(axis=1, keepdims=True))
    estimates = (is_masked * masked["mask_weights"] * cost).sum(axis=1)
    tokens = masked["mask_weights"] > 0
    exact = (value * tokens[0]).sum() * of_mask(np.arange(1, length + 1)).mean()
    error = estimates.std() / np.sqrt(number)
    # Bernoulli rates begin at LEAST_RATE, which adds less than this.
    assert abs(estimates.mean() - exact) < 4 * error + 2 * LEAST_RATE * exact
    assert error < 0.02 * exact


def test_each_held_out_row_has_all_rates_one_after_another():
    spec = dataclasses.replace(SPEC, **ROWS, batch_size=24)
    batches = list(evaluation_batches(STORE, TOKENIZER, spec, 5))
    assert sum(batch["example_weights"].sum() for batch in batches) == 5
    for batch in batches:
        for rows in np.arange(len(batch["input_ids"])).reshape(-1, HELD_OUT_RATES):
            original, weights = batch["original_ids"][rows], batch["mask_weights"][rows]
            assert (original == original[0]).all()
            if not batch["example_weights"][rows[0]]:
                assert not weights.any()
                continue
            total = (weights[0] > 0).sum()
            number = np.sort((batch["input_ids"][rows] != original).sum(axis=1))
            np.testing.assert_allclose(
                weights.max(axis=1),
                total / number[np.argsort(np.argsort(-weights.max(axis=1)))],
                rtol=1e-6,
            )
            assert np.abs(np.diff(number) - total / HELD_OUT_RATES).max() < 1


def test_held_out_rows_do_not_depend_on_hosts_and_batch_sizes():
    def rows(**options):
        size, hosts = options.pop("batch_size", 24), options
        spec = dataclasses.replace(SPEC, **ROWS, batch_size=size)
        batches = list(evaluation_batches(STORE, TOKENIZER, spec, 6, **hosts))
        return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}

    full = rows()
    for name, values in rows(batch_size=48).items():
        np.testing.assert_array_equal(values[: 6 * HELD_OUT_RATES], full[name])
    hosts = [rows(batch_size=48, multiple=2, shards=(i,), num_shards=2) for i in range(2)]
    for name, values in full.items():
        joined = np.concatenate([host[name] for host in hosts])
        np.testing.assert_array_equal(joined[: len(values)], values)
