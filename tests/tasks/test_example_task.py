"""GLUE's metrics, by hand and against other formulas."""

import numpy as np
import pytest

from bert_jax.tasks.example_task import class_scores, regression_scores


def test_two_classes_by_hand():
    """3 true positives, 1 false negative, 2 false positives, 4 true negatives."""
    labels = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    predictions = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
    assert class_scores(labels, predictions, 2) == pytest.approx(
        {
            "accuracy": 0.7,
            "f1": 6 / 9,
            "f1_accuracy": (0.7 + 6 / 9) / 2,
            "matthews": (3 * 4 - 2 * 1) / np.sqrt(5 * 4 * 6 * 5),
        },
        abs=1e-12,
    )
    assert class_scores(labels, predictions, 3) == {"accuracy": 0.7}


def test_regression():
    labels = np.array([0.0, 1.0, 2.5, 2.5, 5.0])
    predictions = np.array([0.1, 0.4, 9.0, 3.0, 8.0])
    ranks = np.array([1, 2, 3.5, 3.5, 5]), np.array([1, 2, 5, 3, 4])
    pearson, spearman = np.corrcoef(labels, predictions)[0, 1], np.corrcoef(*ranks)[0, 1]
    assert regression_scores(labels, predictions) == pytest.approx(
        {
            "pearson": pearson,
            "spearman": spearman,
            "pearson_spearman": (pearson + spearman) / 2,
            "negative_mean_squared_error": -np.mean((labels - predictions) ** 2),
        }
    )


@pytest.mark.parametrize("labels, predictions", [([0, 1, 0, 1], [1, 1, 1, 1]), ([1], [2])])
def test_undefined_correlations_are_0(labels, predictions):
    labels, predictions = np.array(labels), np.array(predictions)
    assert class_scores(labels, predictions, 2)["matthews"] == 0
    scores = regression_scores(labels, predictions)
    assert scores["pearson"] == scores["spearman"] == 0


def test_f1_without_positives_is_0():
    assert class_scores(np.zeros(4, int), np.zeros(4, int), 2)["f1"] == 0
