"""A label, several labels or a number for a text or a pair: `bert.classify`."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict
from scipy.special import expit, softmax

from bert_jax.base.errors import UserError
from bert_jax.heads.head import Head
from bert_jax.heads.reranker import rerank
from bert_jax.heads.verb import TEXT_OR_PAIR, Item, Verb, texts_of
from bert_jax.tasks.glue import SPECS
from bert_jax.tasks.token_rows import windows
from bert_jax.tokenizers.given_texts import SecondTexts, Texts, as_texts, one_or_all

if TYPE_CHECKING:
    from bert_jax.inference.finetuned import FineTuned
    from bert_jax.training.stages import Stage


class Label(NamedTuple):
    """A class of a text and its probability.

    The probabilities of all classes add up to 1, unless the model has `multi_label`.
    """

    label: str
    probability: float


def classify(bert: "FineTuned", text: Texts, text_b: SecondTexts = None) -> Any:
    """Ranks the classes of a sentence or a pair, the likeliest first: a list of `Label`.

    A model with one output (regression) gives that number instead. A list of sentences or pairs
    gives a list of such results.
    """
    texts = as_texts(text, text_b)
    size = len(bert.text_columns)
    if size and any(isinstance(t, str) == (size == 2) for t in texts):
        what = "single sentences" if size == 1 else "pairs of sentences"
        warnings.warn(f"{bert.source} was fine-tuned on {what}", stacklevel=2)
    if bert.activation and not bert.labels:
        warnings.warn(f"{bert.source} is a reranker: rerank gives its scores", stacklevel=2)
    is_in_windows = bert.trained.get("data", {}).get("long_texts") == "windows"
    if is_in_windows and all(isinstance(t, str) for t in texts):
        rows = bert.rows(texts, whole=True)
        in_windows = [windows(row, bert.tokenizer, bert.max_length) for row in rows]
    else:
        in_windows = [[row] for row in bert.rows(texts)]
    outputs = iter(bert.outputs([row for rows in in_windows for row in rows]))
    logits = [np.mean([next(outputs)[0] for _ in rows], axis=0) for rows in in_windows]
    return one_or_all(text, [_classes(bert, logits_C) for logits_C in logits])


def _classes(bert: "FineTuned", logits_C: np.ndarray) -> list[Label] | float:
    if not bert.labels:
        return float(logits_C[0])
    probs_C = (expit if bert.multi_label else softmax)(logits_C.astype(np.float64))
    ranked = np.argsort(-probs_C, kind="stable")
    return [Label(bert.labels[i], float(probs_C[i])) for i in ranked]


def find_text_columns(trained: Mapping[str, Any]) -> tuple[str, ...]:
    """Finds the columns of the sentences in the training data; empty if they are not known."""
    if trained.get("task") in SPECS:
        return SPECS[trained["task"]].texts
    if trained.get("task") == "table":
        table = trained["table"]
        columns = (table.get("text_column", "text"), table["text_b_column"])
        return tuple(column for column in columns if column)
    return ()


def _predict(
    bert: "FineTuned",
    items: list[Item],
    text_columns: tuple[str, ...] = (),
    threshold: float | None = None,
) -> list[Item]:
    if threshold is not None and not bert.multi_label:
        raise UserError("--threshold is for models with several labels a text")
    least = bert.threshold if threshold is None else threshold
    found = []
    for labels in classify(bert, texts_of(bert, items, text_columns)):
        if isinstance(labels, float):
            found.append({"prediction": labels})
            continue
        chosen = labels[0].label
        if bert.multi_label:
            chosen = [label.label for label in labels if label.probability > least]
        found.append({"prediction": chosen, "probabilities": dict(labels)})
    return found


def _loss_options(
    config: ConfigDict, class_counts: Mapping[str, int], stage: "Stage"
) -> dict[str, Any]:
    own, counts = config.get("table", {}), class_counts.values()
    weights: tuple[float, ...] = ()
    if own.get("class_weights"):
        # As scikit-learn's "balanced". A class without training rows has no loss.
        weights = tuple(sum(counts) / (len(counts) * max(1, n)) for n in counts)
    return {
        "num_labels": len(config.labels),
        "multi_label": own.get("multi_label", False),
        "class_weights": weights,
    }


HEAD = Head(
    model="bert_jax.models.task_models:BertForSequenceClassification",
    loss="bert_jax.objectives.task_losses:label_loss",
    loss_options=_loss_options,
    task="table",
    transformers_class="SequenceClassification",
    methods={"classify": classify, "rerank": rerank},
    verb=Verb(
        "classify",
        _predict,
        TEXT_OR_PAIR,
        ("text_columns", "threshold"),
        example=("'He came to see us.'", "'He was there.'"),
    ),
)
