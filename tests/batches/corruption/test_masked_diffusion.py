"""Masked diffusion, whose rows have a masking rate each, defined outside the package."""

import dataclasses

import numpy as np
import pytest

from bert_jax.batches.corruption.masked_lm import MaskingRules
from bert_jax.batches.evaluation_batches import evaluation_batches
from tests.batches.fakes import MASK
from tests.batches.small_stream import SPEC, STORE, TOKENIZER, stream

LENGTH = 64
DIFFUSION = MaskingRules(
    rate_of="groups",
    rounding="coins",
    fractions=(1.0, 0.0, 0.0),
    row_rate=lambda uniform_B, rate: uniform_B,
    held_out_as_trained=True,
)
CHANGES = {
    "corruption": DIFFUSION,
    "rows": "full_sentences",
    "max_seq_length": LENGTH,
    "max_predictions_per_seq": LENGTH,
}


def rates(batches):
    """Returns the fraction of the text that is masked in each row."""
    found = []
    for batch in batches:
        is_counted_B = batch.get("example_weights", np.ones(len(batch["input_ids"]))) > 0
        batch = {name: values[is_counted_B] for name, values in batch.items()}
        num_masked_B = (batch["input_ids"] == MASK).sum(axis=1)
        assert np.array_equal(num_masked_B, batch["masked_lm_weights"].sum(axis=1))
        # [CLS] and [SEP] are never masked; nothing else is replaced.
        num_text_B = (batch["input_ids"] >= MASK).sum(axis=1)
        found.append(num_masked_B / num_text_B)
    return np.concatenate(found)


@pytest.mark.parametrize("is_held_out", [False, True])
def test_the_rates_of_rows_are_uniform(is_held_out):
    spec = dataclasses.replace(SPEC, **CHANGES)
    batches = stream(**CHANGES).batches(0, 60)
    if is_held_out:
        batches = [
            batch
            for seed in range(9)
            for batch in evaluation_batches(STORE, TOKENIZER, dataclasses.replace(spec, seed=seed))
        ]
    rate_B = np.sort(rates(batches))
    # The Kolmogorov-Smirnov distance to the uniform distribution, and the noise of the coins.
    distance = np.abs(rate_B - (np.arange(len(rate_B)) + 0.5) / len(rate_B)).max()
    assert len(rate_B) > 400 and distance < 1.63 / np.sqrt(len(rate_B)) + 0.02


def test_the_rate_of_a_row_does_not_depend_on_its_batch():
    one, other = (
        rates(stream(**CHANGES, batch_size=size).batches(0, 24 // size)) for size in (12, 8)
    )
    assert np.array_equal(one, other)
