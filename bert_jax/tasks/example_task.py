"""Tasks with one label for each example: GLUE, the user's own tables and multiple choice."""

import abc
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from bert_jax.tasks.task import Task
from bert_jax.tasks.token_rows import Example, ExampleRows
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.tables import TableRow, read_rows


class ExampleTask(Task):
    """A task with one label for each example; see `Task`. Subclasses read the examples."""

    @abc.abstractmethod
    def examples(self, source: epath.Path, split: str, bad_rows: BadRecords) -> Iterator[Example]:
        """Yields the examples of a file; see `read`."""

    def read(self, source: epath.Path, split: str, bad_rows: BadRecords) -> ExampleRows:
        has_choices = self.head == "multiple_choice"
        label_type = np.int32 if self.labels or has_choices else np.float32
        examples = self.examples(source, split, bad_rows)
        rows = ExampleRows(examples, self._tokenizer, self._max_seq_length, label_type, has_choices)
        self.check_not_empty(source, split, rows)
        return rows

    def score(self, rows: ExampleRows, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """See `class_scores` and `regression_scores`."""
        labels_N, predictions_N = rows.labels_N, self.predictions(outputs)
        if not self.labels:
            return regression_scores(labels_N, predictions_N)
        return class_scores(labels_N, predictions_N, len(self.labels))

    def class_counts(self) -> dict[str, int]:
        if not self.labels or self.head == "multiple_choice":
            return {}
        counts_C = np.bincount(self.rows("train").labels_N, minlength=len(self.labels))
        return dict(zip(self.labels, counts_C.tolist(), strict=True))

    def predictions(self, outputs: dict[str, np.ndarray]) -> np.ndarray:
        """Returns the class of each row, int64 [N], or its number, float32 [N]."""
        logits = outputs["logits"]
        return np.argmax(logits, axis=-1) if self.labels else logits[:, 0]


class SentenceTask(ExampleTask):
    """A class or a number for a sentence or a pair, read from the columns of a file.

    A subclass sets these attributes:

    Attributes:
      text_columns: The columns of the one or two sentences.
      label_column: The column of the label or the number.
      label_values: The spelling of the labels in the file, in the order of `labels`.
      limits: The lowest and the highest number that are allowed; None for no limits.
    """

    head = "sequence_classification"
    text_columns: Sequence[str]
    label_column: str
    label_values: Sequence[str] = ()
    limits: tuple[float, float] | None = None

    def examples(self, source: epath.Path, split: str, bad_rows: BadRecords) -> Iterator[Example]:
        # A test file needs no labels, and none are read.
        is_test = split.startswith("test")
        needed = self.text_columns if is_test else (*self.text_columns, self.label_column)
        header = self.header(split)
        rows = read_rows(source, needed, bad_rows, is_required=is_test, header=header)
        for row in self.part(split, rows):
            with bad_rows.catching(row.where, is_required=is_test):
                label = None if is_test else self._label(row.values)
                texts = [row.values[column] for column in self.text_columns]
                if not is_test and not all(text.strip() for text in texts):
                    raise BadRecord("empty sentence", "a sentence is empty")
                text, *others = texts
                yield Example(
                    self.id_of(row, split), [(text, others[0] if others else None)], label
                )

    def header(self, split: str) -> Sequence[str]:
        """Returns the names of the columns if the file has no header; otherwise nothing."""
        return ()

    def id_of(self, row: TableRow, split: str) -> str:
        """Returns the name of a row in predictions."""
        return str(row.number)

    def _label(self, values: Mapping[str, Any]) -> int | float:
        text = values[self.label_column].strip()
        problem = f"{self.label_column} is {text!r}, not"
        if self.labels:
            if text not in self.label_values:
                known = ", ".join(self.label_values[:20])
                raise BadRecord("unknown label", f"{problem} one of the labels {known}")
            return self.label_values.index(text)
        number = as_number(text)
        low, high = self.limits or (-np.inf, np.inf)
        if number is None or not low <= number <= high:
            limits = f" from {low:g} to {high:g}" if self.limits else ""
            raise BadRecord("not a number", f"{problem} a number{limits}")
        return number


def as_number(text: str) -> float | None:
    """Parses a number that is finite in float32; None if the text is not one."""
    try:
        # Python reads 1_000 as a number; in a table it is more likely something else.
        number = float("" if "_" in text else text)
    except ValueError:
        return None
    return number if abs(number) <= float(np.finfo(np.float32).max) else None


def class_scores(
    labels_N: np.ndarray, predictions_N: np.ndarray, num_labels: int
) -> dict[str, float]:
    """Computes "accuracy" and, for two classes, "f1", "f1_accuracy" (their mean), "matthews"."""
    accuracy = float(np.mean(labels_N == predictions_N))
    if num_labels != 2:
        return {"accuracy": accuracy}
    f1 = _f1(labels_N == 1, predictions_N == 1)
    # The Matthews coefficient is the Pearson correlation of the indicators.
    matthews = correlations(labels_N == 1, predictions_N == 1)[0]
    return {
        "accuracy": accuracy,
        "f1": f1,
        "f1_accuracy": (f1 + accuracy) / 2,
        "matthews": matthews,
    }


def regression_scores(labels_N: np.ndarray, predictions_N: np.ndarray) -> dict[str, float]:
    """Computes "pearson", "spearman", their mean, and "negative_mean_squared_error"."""
    pearson, spearman = correlations(labels_N, predictions_N)
    errors_N = predictions_N.astype(np.float64) - labels_N
    return {
        "pearson": pearson,
        "spearman": spearman,
        "pearson_spearman": (pearson + spearman) / 2,
        "negative_mean_squared_error": -float(np.mean(errors_N**2)),
    }


def _f1(is_right_N: np.ndarray, is_predicted_N: np.ndarray) -> float:
    """Computes F1 of the positive class; 0 if it neither occurs nor is predicted."""
    total = np.sum(is_right_N) + np.sum(is_predicted_N)
    return float(2 * np.sum(is_right_N & is_predicted_N) / total) if total else 0.0


def correlations(labels_N: np.ndarray, predictions_N: np.ndarray) -> tuple[float, float]:
    """Computes Pearson's and Spearman's correlations; 0 if they are undefined."""
    from scipy import stats  # The import takes a second.

    sides = labels_N.astype(float), predictions_N.astype(float)
    if any(len(set(side.tolist())) < 2 for side in sides):
        return 0.0, 0.0
    found = stats.pearsonr(*sides).statistic, stats.spearmanr(*sides).statistic
    return tuple(float(value) if math.isfinite(value) else 0.0 for value in found)
