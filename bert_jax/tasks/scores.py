"""GLUE's metrics (Wang et al. 2019, section 3); all are better the higher they are."""

import math
import warnings

import numpy as np
from scipy import stats


def accuracy(labels_N: np.ndarray, predictions_N: np.ndarray) -> float:
    """Share of right predictions."""
    return float(np.mean(labels_N == predictions_N))


def f1(labels_N: np.ndarray, predictions_N: np.ndarray) -> float:
    """F1 of the class 1; 0 where it is neither there nor predicted."""
    right = np.sum((labels_N == 1) & (predictions_N == 1))
    named = np.sum(labels_N == 1) + np.sum(predictions_N == 1)
    return float(2 * right / named) if named else 0.0


def matthews_correlation(labels_N: np.ndarray, predictions_N: np.ndarray) -> float:
    """Matthews' coefficient of classes 0 and 1; 0 where one of both sides is constant."""
    yes, guessed = labels_N == 1, predictions_N == 1
    counts = [np.sum(a & b) for a in (yes, ~yes) for b in (guessed, ~guessed)]
    true_positive, false_negative, false_positive, true_negative = map(float, counts)
    scale = math.sqrt(
        (true_positive + false_positive)
        * (true_positive + false_negative)
        * (true_negative + false_positive)
        * (true_negative + false_negative)
    )
    difference = true_positive * true_negative - false_positive * false_negative
    return difference / scale if scale else 0.0


def pearson(labels_N: np.ndarray, predictions_N: np.ndarray) -> float:
    """Pearson's r; 0 where one side is constant and it is not defined."""
    return _correlation(stats.pearsonr, labels_N, predictions_N)


def spearman(labels_N: np.ndarray, predictions_N: np.ndarray) -> float:
    """Spearman's rho, ties at their mean rank; 0 where one side is constant."""
    return _correlation(stats.spearmanr, labels_N, predictions_N)


def _correlation(statistic, labels_N: np.ndarray, predictions_N: np.ndarray) -> float:
    if len(labels_N) < 2:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = float(statistic(labels_N.astype(float), predictions_N.astype(float)).statistic)
    return value if math.isfinite(value) else 0.0
