"""BART's corruption against fairseq's DenoisingDataset, as recorded by golden/denoising.py."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.golden import denoising as golden
from bert_jax.batches.corruption.denoising import Denoising
from bert_jax.batches.random_keys import random_key
from tests.batches.fakes import make_spec
from tests.batches.test_fairseq_parity import largest_z_score
from tests.golden.inputs import read_json

# The largest difference of a bin, in standard errors.
LIMIT = 4.5
# The words of a span are hidden together, so that their positions vary more.
LIMITS = {"position": 8.0}
ROWS_AT_ONCE = 1000


@pytest.fixture(scope="module")
def recorded():
    return read_json("denoising.json")


@functools.cache
def our_counts(name):
    num_words, poisson_lambda, permuted, num_rows = golden.SETTINGS[name]
    ids, begins_word, begins_sentence = golden.make_row(num_words)
    is_word_start_V = np.ones(golden.VOCAB_SIZE, bool)
    is_word_start_V[ids] = begins_word
    tokenizer = SimpleNamespace(
        vocab_size=golden.VOCAB_SIZE,
        cls_id=golden.BEGIN,
        pad_id=golden.PAD,
        sep_id=golden.END,
        unk_id=3,
        mask_id=golden.MASK,
        is_word_start_V=is_word_start_V,
    )
    spec = make_spec(
        masked_lm_prob=golden.MASK_RATIO,
        mask_fractions=(1 - golden.RANDOM_RATIO, 0.0, golden.RANDOM_RATIO),
        poisson_lambda=poisson_lambda,
        permute_sentence_ratio=permuted,
    )
    corruption = Denoising(tokenizer, spec)
    row = {"input_ids": ids.astype(np.int32), "begins_sentence": begins_sentence}
    batch = {key: np.tile(value, (ROWS_AT_ONCE, 1)) for key, value in row.items()}
    batch["attention_mask"] = np.ones_like(batch["input_ids"])

    def rows():
        for first in range(0, num_rows, ROWS_AT_ONCE):
            corrupted = corruption.corrupt(batch, random_key(11), first)
            for row, length in zip(
                corrupted["input_ids"], corrupted["attention_mask"].sum(axis=1), strict=True
            ):
                yield row[:length]

    return golden.summarize(rows(), num_words, permuted)


@pytest.mark.parametrize(
    "name",
    [
        # Others are combined in "half_permuted", or are like "lambda_3.5".
        pytest.param(name, marks=pytest.mark.slow) if name in ("lambda_3", "permuted") else name
        for name in golden.SETTINGS
    ],
)
def test_distributions_match_fairseq(recorded, name):
    ours, theirs = our_counts(name), recorded[name]
    assert ours.keys() == theirs.keys() and len(theirs) >= 8
    z_scores = {key: largest_z_score(ours[key], theirs[key]) for key in theirs}
    assert {k: z for k, z in z_scores.items() if z >= LIMITS.get(k, LIMIT)} == {}
