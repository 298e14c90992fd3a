"""Scores of classes, sets of labels and numbers beside those of scikit-learn."""

import warnings

import numpy as np
import pytest
from scipy import stats

from bert_jax.tasks.scores import class_scores, class_table, label_scores, regression_scores

pytestmark = pytest.mark.outside
metrics = pytest.importorskip("sklearn.metrics")


@pytest.fixture(params=range(20))
def rng(request):
    return np.random.default_rng(request.param)


@pytest.fixture(autouse=True)
def no_warnings():
    """scikit-learn and scipy warn of each score that they cannot define."""
    with warnings.catch_warnings(action="ignore"):
        yield


@pytest.mark.parametrize("num_labels", [2, 3, 7])
def test_classes(rng, num_labels):
    """In small draws, some of the seven classes neither occur nor are predicted."""
    labels, predictions = rng.integers(0, num_labels, (2, rng.integers(4, 40)))
    expected = {"accuracy": metrics.accuracy_score(labels, predictions)}
    if num_labels == 2:
        f1 = metrics.f1_score(labels, predictions, zero_division=0)
        expected["f1"], expected["f1_accuracy"] = f1, (f1 + expected["accuracy"]) / 2
        expected["matthews"] = metrics.matthews_corrcoef(labels, predictions)
    for average in ("macro", "weighted")[: 1 + (num_labels > 2)]:
        f1 = metrics.f1_score(labels, predictions, average=average, zero_division=0)
        expected[f"{average}_f1"] = f1
    assert class_scores(labels, predictions, num_labels) == pytest.approx(expected, abs=1e-12)
    names = "abcdefg"[:num_labels]
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        labels, predictions, labels=range(num_labels), zero_division=0
    )
    confusion = metrics.confusion_matrix(labels, predictions, labels=range(num_labels))
    for i, row in enumerate(class_table(labels, predictions, names)):
        found = [row[name] for name in ("precision", "recall", "f1", "support")]
        assert found == pytest.approx([precision[i], recall[i], f1[i], support[i]], abs=1e-12)
        assert [row["predicted"].get(name, 0) for name in names] == confusion[i].tolist()


@pytest.mark.parametrize(
    ("labels", "predictions"),
    [([0, 0], [0, 0]), ([1, 1], [1, 1]), ([1, 0], [0, 0]), ([1, 1], [0, 1]), ([0, 0], [0, 1])],
)
def test_a_single_class(labels, predictions):
    found = class_scores(np.array(labels), np.array(predictions), 2)
    assert found["f1"] == pytest.approx(metrics.f1_score(labels, predictions))
    assert found["matthews"] == pytest.approx(metrics.matthews_corrcoef(labels, predictions))


def test_several_labels(rng):
    """Many scores are equal. The first label has no rows, and others of few rows have none."""
    num_rows = rng.integers(6, 40)
    labels = rng.random((num_rows, 5)) < [0, *rng.random(4)]
    logits = np.round(rng.standard_normal((num_rows, 5)), 1)
    f1 = {
        f"{average}_f1": metrics.f1_score(labels, logits > 0, average=average, zero_division=0)
        for average in ("micro", "macro")
    }
    assert label_scores(labels, logits > 0, logits) == pytest.approx(
        f1
        | {
            "average_precision": metrics.average_precision_score(labels, logits),
            "accuracy": metrics.accuracy_score(labels, logits > 0),
        },
        abs=1e-12,
    )


def test_numbers(rng):
    labels = np.round(rng.standard_normal(30), 1)
    predictions = labels + rng.standard_normal(30)
    found = regression_scores(labels, predictions)
    assert found["r2"] == pytest.approx(metrics.r2_score(labels, predictions))
    errors = {
        "negative_mean_squared_error": metrics.mean_squared_error,
        "negative_mean_absolute_error": metrics.mean_absolute_error,
    }
    for name, error in errors.items():
        assert found[name] == pytest.approx(-error(labels, predictions))


@pytest.mark.parametrize(
    ("labels", "predictions"),
    [
        ([0.0, 1, 2.5, 2.5, 5], [0.1, 0.4, 9, 3, 3]),
        ([0.0, 1, 2], [3.0, 3, 3]),
        ([2.0, 2, 2], [1.0, 2, 3]),
        ([1.0, 2], [2.0, 1]),
    ],
)
def test_equal_numbers(labels, predictions):
    """What is NaN in scipy, or not finite in scikit-learn, is None."""
    labels, predictions = np.array(labels), np.array(predictions)
    expected = {
        "pearson": stats.pearsonr(labels, predictions).statistic,
        "spearman": stats.spearmanr(labels, predictions).statistic,
        "r2": metrics.r2_score(labels, predictions, force_finite=False),
    }
    found = regression_scores(labels, predictions)
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value) if np.isfinite(value) else None), name
