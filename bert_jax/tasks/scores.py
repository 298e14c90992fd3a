"""GLUE's metrics (Wang et al. 2019, section 3). Higher is better for all of them."""

import math
import warnings

import numpy as np


def class_scores(
    labels_N: np.ndarray, predictions_N: np.ndarray, num_labels: int
) -> dict[str, float]:
    """Returns "accuracy" and, for two classes, "f1", "f1_accuracy" (their mean), "matthews"."""
    accuracy = float(np.mean(labels_N == predictions_N))
    if num_labels != 2:
        return {"accuracy": accuracy}
    f1 = _f1(labels_N == 1, predictions_N == 1)
    matthews = _correlation("pearsonr", labels_N == 1, predictions_N == 1)
    return {
        "accuracy": accuracy,
        "f1": f1,
        "f1_accuracy": (f1 + accuracy) / 2,
        "matthews": matthews,
    }


def regression_scores(labels_N: np.ndarray, predictions_N: np.ndarray) -> dict[str, float]:
    """Returns "pearson", "spearman", their mean, and "negative_mean_squared_error"."""
    pearson = _correlation("pearsonr", labels_N, predictions_N)
    spearman = _correlation("spearmanr", labels_N, predictions_N)
    errors_N = predictions_N.astype(np.float64) - labels_N
    return {
        "pearson": pearson,
        "spearman": spearman,
        "pearson_spearman": (pearson + spearman) / 2,
        "negative_mean_squared_error": -float(np.mean(errors_N**2)),
    }


def _f1(is_right_N: np.ndarray, is_predicted_N: np.ndarray) -> float:
    """Returns F1 of the positive class; 0 if there is none and none is predicted."""
    total = np.sum(is_right_N) + np.sum(is_predicted_N)
    return float(2 * np.sum(is_right_N & is_predicted_N) / total) if total else 0.0


def _correlation(name: str, labels_N: np.ndarray, predictions_N: np.ndarray) -> float:
    """Returns a correlation; 0 where it is not defined because one side is constant.

    The Matthews coefficient of two classes is the Pearson correlation of their indicators.
    """
    from scipy import stats  # The import takes a second.

    if len(labels_N) < 2:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = float(
            getattr(stats, name)(labels_N.astype(float), predictions_N.astype(float)).statistic
        )
    return value if math.isfinite(value) else 0.0
