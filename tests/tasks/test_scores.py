"""Scores of classes, sets of labels and numbers, by hand and against other formulas."""

import numpy as np
import pytest

from bert_jax.tasks.scores import (
    best_threshold,
    class_scores,
    class_table,
    label_scores,
    regression_scores,
    score_text,
)


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
            "macro_f1": (6 / 9 + 8 / 11) / 2,
        },
        abs=1e-12,
    )


def test_three_classes_by_hand():
    """The last class neither occurs nor is predicted; it does not count, as in scikit-learn."""
    labels, predictions = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 2, 0])
    f1 = np.array([2 * 2 / (3 + 3), 2 * 1 / (2 + 2), 0])
    assert class_scores(labels, predictions, 4) == pytest.approx(
        {"accuracy": 0.5, "macro_f1": f1.mean(), "weighted_f1": f1 @ [3 / 6, 2 / 6, 1 / 6]}
    )
    first, second, *_ = class_table(labels, predictions, "abcd")
    assert first == {
        "class": "a",
        "precision": pytest.approx(2 / 3),
        "recall": pytest.approx(2 / 3),
        "f1": pytest.approx(f1[0]),
        "support": 3,
        "predicted": {"a": 2, "b": 1},
    }
    assert second["predicted"] == {"b": 1, "c": 1} and second["support"] == 2


def test_several_labels_by_hand():
    """scikit-learn 1.9 gives the same values; two rows of the first label have equal scores."""
    labels = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]], bool)
    logits = np.array([[2.0, -1, -3], [1, 3, 1], [1, -2, -2], [-1, 1, -5]])
    assert label_scores(labels, logits > 0, logits) == pytest.approx(
        {
            # Right: 2 + 1 + 0; predicted: 3 + 2 + 1; labels: 2 + 2 + 0.
            "micro_f1": 2 * 3 / (6 + 4),
            "macro_f1": (4 / 5 + 2 / 4 + 0) / 3,
            # No row has the third label, which counts as 0.
            "average_precision": ((1 / 2 + 2 / 3 / 2) + (1 / 2 + 2 / 4 / 2) + 0) / 3,
            "accuracy": 1 / 4,
        }
    )
    assert "predicted" not in class_table(labels, logits > 0, "abc")[0]


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
            "negative_mean_absolute_error": -np.mean(np.abs(labels - predictions)),
            "r2": 1 - np.sum((labels - predictions) ** 2) / np.sum((labels - labels.mean()) ** 2),
        }
    )


@pytest.mark.parametrize(
    "labels, predictions",
    [([0, 1, 0, 1], [1, 1, 1, 1]), ([1], [0]), ([0, 1, 2], [np.nan, 1, 2])],
)
def test_undefined_correlations_are_none(labels, predictions):
    scores = regression_scores(np.array(labels), np.array(predictions))
    names = ("pearson", "spearman", "pearson_spearman")
    assert [scores[name] for name in names] == [None, None, None]
    assert score_text(scores["pearson"]) == "undefined" and score_text(0.5) == "0.5000"


def test_scores_of_equal_labels():
    """R2 divides by their variance. The Matthews coefficient is 0, as in scikit-learn."""
    assert regression_scores(np.ones(3), np.arange(3.0))["r2"] is None
    assert class_scores(np.array([1, 1]), np.array([0, 1]), 2)["matthews"] == 0


def test_f1_without_positives_is_0():
    assert class_scores(np.zeros(4, int), np.zeros(4, int), 2)["f1"] == 0


def test_the_best_threshold_is_that_of_all_thresholds():
    rng = np.random.default_rng(0)
    for _ in range(20):
        labels = rng.random((30, 3)) < 0.3
        # No other threshold is better than those in steps of a hundredth.
        probabilities = np.round(rng.random((30, 3)) * 0.6 + 0.4 * labels, 1).astype(np.float32)
        found = best_threshold(labels, probabilities)
        tried = [
            label_scores(labels, probabilities > threshold, probabilities)["micro_f1"]
            for threshold in (*np.arange(0.005, 1, 0.01), found["best_micro_f1_threshold"])
        ]
        assert found["best_micro_f1"] == pytest.approx(max(tried)) == pytest.approx(tried[-1])
