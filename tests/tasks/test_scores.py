"""GLUE's metrics, against definitions and against each other."""

import numpy as np
import pytest

from bert_jax.tasks import scores

RNG = np.random.default_rng(0)


def binary(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 50)
    return labels, np.where(rng.random(50) < 0.7, labels, 1 - labels)


@pytest.mark.parametrize("seed", range(5))
def test_matthews_is_the_correlation_of_two_classes(seed):
    """Pearson's r of zeros and ones: another formula for the same coefficient."""
    labels, predictions = binary(seed)
    expected = np.corrcoef(labels, predictions)[0, 1]
    assert scores.matthews_correlation(labels, predictions) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_f1_is_the_harmonic_mean_of_precision_and_recall(seed):
    labels, predictions = binary(seed)
    precision, recall = labels[predictions == 1].mean(), predictions[labels == 1].mean()
    expected = 2 * precision * recall / (precision + recall)
    assert scores.f1(labels, predictions) == pytest.approx(expected)


def test_known_values():
    """Worked by hand: 3 right yes, 1 missed, 2 wrong yes, 4 right no."""
    labels = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    predictions = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
    assert scores.accuracy(labels, predictions) == 0.7
    assert scores.f1(labels, predictions) == pytest.approx(6 / 9)
    expected = (3 * 4 - 2 * 1) / np.sqrt(5 * 4 * 6 * 5)
    assert scores.matthews_correlation(labels, predictions) == pytest.approx(expected)


def test_correlations():
    labels = np.array([0.0, 1.0, 2.5, 2.5, 5.0])
    predictions = np.array([0.1, 0.4, 9.0, 3.0, 8.0])
    assert scores.pearson(labels, predictions) == pytest.approx(
        np.corrcoef(labels, predictions)[0, 1]
    )
    ranks = np.array([1, 2, 3.5, 3.5, 5]), np.array([1, 2, 5, 3, 4])
    assert scores.spearman(labels, predictions) == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_what_is_not_defined_is_0_and_no_nan():
    ones, mixed = np.ones(4, int), np.array([0, 1, 0, 1])
    assert scores.matthews_correlation(mixed, ones) == 0
    assert scores.pearson(mixed, ones) == scores.spearman(mixed, ones) == 0
    assert scores.f1(np.zeros(4, int), np.zeros(4, int)) == 0
    assert scores.pearson(np.array([1.0]), np.array([2.0])) == 0
