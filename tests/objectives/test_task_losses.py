"""The losses of fine-tuning, against plain numpy."""

import numpy as np
import pytest

from bert_jax.objectives.task_losses import AnswerSpan, Labels, LabelSets, Number

RNG = np.random.default_rng(0)


def log_softmax(x):
    x = x.astype(np.float64)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def means(objective, outputs, batch):
    total = objective.totals(batch)
    return {name: float(x / total) for name, x in objective.sums(outputs, batch).items()}


@pytest.mark.parametrize("labels", [[0, 2, 1, 1, 0], [[0, -1, 2, -1], [-1, -1, -1, 1]]])
def test_labels(labels):
    """Labels of -1 do not count."""
    labels = np.array(labels)
    logits = RNG.normal(size=(*labels.shape, 3)).astype(np.float32)
    result = means(Labels(), {"logits": logits}, {"labels": labels})
    real = labels >= 0
    losses = -log_softmax(logits)[real][np.arange(real.sum()), labels[real]]
    assert result["loss"] == pytest.approx(losses.mean())
    assert result["accuracy"] == pytest.approx((logits.argmax(-1) == labels)[real].mean())
    nothing = means(Labels(), {"logits": logits}, {"labels": np.full_like(labels, -1)})
    assert nothing == {"loss": 0, "accuracy": 0}


def test_class_weights():
    """Labels of a class count by its weight; the sum is divided by their number."""
    logits, labels = RNG.normal(size=(3, 2)).astype(np.float32), np.array([0, 1, -1])
    result = means(Labels((0.5, 3.0)), {"logits": logits}, {"labels": labels})
    losses = -log_softmax(logits)[[0, 1], [0, 1]]
    assert result["loss"] == pytest.approx((0.5 * losses[0] + 3 * losses[1]) / 2)


def test_several_labels():
    logits = RNG.normal(size=(4, 3)).astype(np.float32)
    labels = RNG.integers(0, 2, (4, 3)).astype(np.float32)
    result = means(LabelSets(), {"logits": logits}, {"labels": labels})
    probs = 1 / (1 + np.exp(-logits.astype(np.float64)))
    losses = -np.log(np.where(labels, probs, 1 - probs))
    assert result == {
        "loss": pytest.approx(losses.mean()),
        "accuracy": pytest.approx(((logits > 0) == labels).mean()),
    }


def test_numbers():
    logits, labels = RNG.normal(size=(5, 1)).astype(np.float32), RNG.normal(size=5)
    labels = labels.astype(np.float32)
    result = means(Number(), {"logits": logits}, {"labels": labels})
    assert result == {"loss": pytest.approx(((logits[:, 0] - labels) ** 2).mean())}


def test_spans():
    start, end = RNG.normal(size=(2, 5, 7)).astype(np.float32)
    batch = {"start_positions": RNG.integers(0, 7, 5), "end_positions": RNG.integers(0, 7, 5)}
    result = means(AnswerSpan(), {"start_logits": start, "end_logits": end}, batch)
    losses = [
        -log_softmax(logits)[np.arange(5), batch[name]].mean()
        for logits, name in ((start, "start_positions"), (end, "end_positions"))
    ]
    assert result["loss"] == pytest.approx(sum(losses) / 2)
