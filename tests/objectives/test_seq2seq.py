"""The loss of sequence-to-sequence fine-tuning against its definition."""

import jax
import numpy as np
import pytest

from bert_jax.models.embeddings import vocabulary_logits
from bert_jax.models.heads import NO_PROBABILITY
from bert_jax.objectives.cross_entropy import (
    DecoderInputs,
    sliced_cross_entropy,
    smoothed_cross_entropy,
)


def make(length, vocab_size=11, rows=16):
    rng = np.random.default_rng(0)
    bias = np.where(np.arange(rows) < vocab_size, 0, NO_PROBABILITY).astype(np.float32)
    hidden, table = rng.normal(size=(3, length, 6)), rng.normal(size=(rows, 6))
    inputs = DecoderInputs(hidden.astype(np.float32), table.astype(np.float32), bias)
    targets = rng.integers(0, vocab_size, (3, length)).astype(np.int32)
    weights = (np.arange(length) < np.array([[length], [2], [length - 3]])).astype(np.float32)
    return inputs, targets, weights


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothed_loss_is_the_cross_entropy_with_smoothed_targets(smoothing):
    inputs, targets, weights = make(21)
    options = {"smoothing": smoothing, "vocab_size": 11}
    loss, correct = smoothed_cross_entropy(inputs, targets, weights, **options)
    log_probs = jax.nn.log_softmax(vocabulary_logits(*inputs))[..., :11].astype(np.float64)
    is_target = np.arange(11) == targets[..., None]
    wanted = np.where(is_target, 1 - smoothing, smoothing / 10)
    expected = -np.sum(weights[..., None] * wanted * log_probs)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    plain, same = sliced_cross_entropy(inputs, targets, weights)
    assert correct == same
    if not smoothing:
        np.testing.assert_allclose(loss, plain, rtol=1e-6)
