"""Scores of predicted classes, sets of labels and numbers.

A score whose formula divides by zero is 0 where scikit-learn's is, and None otherwise.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# The scores of a model by name; None is undefined.
Scores = dict[str, float | None]


def score_text(score: float | None, spec: str = ".4f") -> str:
    return "undefined" if score is None else format(score, spec)


class Counts(NamedTuple):
    """How many rows have each of C classes (`support`), get it, and get it rightly: int [C]."""

    right_C: np.ndarray
    predicted_C: np.ndarray
    support_C: np.ndarray

    def precision(self) -> np.ndarray:
        return _ratio(self.right_C, self.predicted_C)

    def recall(self) -> np.ndarray:
        return _ratio(self.right_C, self.support_C)

    def f1(self) -> np.ndarray:
        """Computes F1 of each class; 0 if it neither occurs nor is predicted."""
        return _ratio(2 * self.right_C, self.predicted_C + self.support_C)

    def micro_f1(self) -> float:
        wholes = (self.predicted_C + self.support_C).sum()
        return float(_ratio(2 * self.right_C.sum(), wholes))


def count(labels: np.ndarray, predictions: np.ndarray, num_labels: int) -> Counts:
    """Counts classes, int [N], or sets of labels, bool [N, C]."""
    if labels.ndim == 2:
        return Counts((labels & predictions).sum(0), predictions.sum(0), labels.sum(0))
    classes = labels[labels == predictions], predictions, labels
    return Counts(*(np.bincount(of_rows, minlength=num_labels) for of_rows in classes))


def class_scores(
    labels_N: np.ndarray, predictions_N: np.ndarray, num_labels: int
) -> dict[str, float]:
    """Computes the scores of one class a row.

    Returns:
      "accuracy"; "macro_f1", the mean F1 of the classes that occur or are predicted; for two
      classes "f1" of the second, "f1_accuracy" (the mean of F1 and accuracy) and "matthews"; for
      more "weighted_f1", weighted by the rows of the classes.
    """
    accuracy = float(np.mean(labels_N == predictions_N))
    counts = count(labels_N, predictions_N, num_labels)
    f1_C = counts.f1()
    macro_f1 = float(np.mean(f1_C[counts.predicted_C + counts.support_C > 0]))
    if num_labels != 2:
        weighted_f1 = float(np.average(f1_C, weights=counts.support_C))
        return {"accuracy": accuracy, "macro_f1": macro_f1, "weighted_f1": weighted_f1}
    f1 = float(f1_C[1])
    # The Matthews coefficient is the Pearson correlation of the indicators.
    matthews = correlations(labels_N == 1, predictions_N == 1)[0]
    return {
        "accuracy": accuracy,
        "f1": f1,
        "f1_accuracy": (f1 + accuracy) / 2,
        "matthews": matthews or 0.0,
        "macro_f1": macro_f1,
    }


def label_scores(
    labels_NxC: np.ndarray, predictions_NxC: np.ndarray, logits_NxC: np.ndarray
) -> dict[str, float]:
    """Computes the scores of any number of labels a row.

    Args:
      logits_NxC: Scores whose order over the rows gives the average precision of each label.

    Returns:
      "micro_f1" over all labels of all rows; "macro_f1" and "average_precision", the means over all
      labels, of which those without rows count as 0; and "accuracy", the fraction of rows whose
      labels are all right.
    """
    counts = count(labels_NxC, predictions_NxC, labels_NxC.shape[1])
    precisions = map(average_precision, labels_NxC.T, logits_NxC.T)
    return {
        "micro_f1": counts.micro_f1(),
        "macro_f1": float(np.mean(counts.f1())),
        "average_precision": float(np.mean([*precisions])),
        "accuracy": float(np.mean((labels_NxC == predictions_NxC).all(axis=1))),
    }


def best_threshold(labels_NxC: np.ndarray, probabilities_NxC: np.ndarray) -> dict[str, float]:
    """Finds the highest micro-F1, and its threshold of probabilities in hundredths."""
    tried = {}
    for threshold in (np.arange(1, 100) / 100).tolist():
        counts = count(labels_NxC, probabilities_NxC > threshold, labels_NxC.shape[1])
        tried[threshold] = counts.micro_f1()
    # If several thresholds are equally good, the one nearest to 0.5 is taken.
    best = max(tried, key=lambda threshold: (tried[threshold], -abs(threshold - 0.5)))
    return {"best_micro_f1": tried[best], "best_micro_f1_threshold": best}


def average_precision(is_right_N: np.ndarray, scores_N: np.ndarray) -> float:
    """Computes the sum of precision times the gain in recall over all thresholds.

    Rows with equal scores pass a threshold together. It is 0 if no row is right.
    """
    order_N = np.argsort(-scores_N, kind="stable")
    right_N = np.cumsum(is_right_N[order_N])
    # The last row of each score.
    last_T = np.flatnonzero(np.diff(scores_N[order_N], append=np.nan) != 0)
    precision_T, recall_T = right_N[last_T] / (last_T + 1), _ratio(right_N[last_T], right_N[-1])
    return float(np.sum(precision_T * np.diff(recall_T, prepend=0)))


def class_table(
    labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Describes each class for results.json.

    Args:
      labels, predictions: See `count`.

    Returns:
      For each class its name as "class", "precision", "recall", "f1" and "support", the number of
      its rows; and if a row has one class, "predicted": how many of them each class was predicted.
    """
    counts = count(labels, predictions, len(names))
    columns = counts.precision(), counts.recall(), counts.f1(), counts.support_C
    rows = [
        {"class": name, "precision": precision, "recall": recall, "f1": f1, "support": support}
        for name, precision, recall, f1, support in zip(
            names, *(column.tolist() for column in columns), strict=True
        )
    ]
    if labels.ndim == 1:
        pairs, number = np.unique(np.stack([labels, predictions]), axis=1, return_counts=True)
        for row in rows:
            row["predicted"] = {}
        for right, predicted, rows_of_both in zip(*pairs.tolist(), number.tolist(), strict=True):
            rows[right]["predicted"][names[predicted]] = rows_of_both
    return rows


def regression_scores(labels_N: np.ndarray, predictions_N: np.ndarray) -> Scores:
    """Computes the correlations, their mean, both mean errors, and R2.

    R2 of equal labels is undefined; see `correlations`.
    """
    pearson, spearman = correlations(labels_N, predictions_N)
    labels_N = labels_N.astype(np.float64)
    errors_N = predictions_N.astype(np.float64) - labels_N
    squared_error, variance = float(np.mean(errors_N**2)), float(np.var(labels_N))
    return {
        "pearson": pearson,
        "spearman": spearman,
        "pearson_spearman": None if None in (pearson, spearman) else (pearson + spearman) / 2,
        "negative_mean_squared_error": -squared_error,
        "negative_mean_absolute_error": -float(np.mean(np.abs(errors_N))),
        "r2": 1 - squared_error / variance if variance else None,
    }


def correlations(
    labels_N: np.ndarray, predictions_N: np.ndarray
) -> tuple[float | None, float | None]:
    """Computes Pearson's and Spearman's correlations, undefined for equal values."""
    from scipy import stats  # The import takes a second.

    sides = labels_N.astype(float), predictions_N.astype(float)
    if any(len(set(side.tolist())) < 2 for side in sides):
        return None, None
    found = stats.pearsonr(*sides).statistic, stats.spearmanr(*sides).statistic
    return tuple(float(value) if math.isfinite(value) else None for value in found)


def _ratio(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    """Divides; 0 where the divisor is 0."""
    return np.divide(parts, wholes, out=np.zeros(np.shape(parts)), where=wholes > 0)
