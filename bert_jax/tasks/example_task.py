"""Tasks with labels of whole examples: GLUE, the user's own tables and multiple choice."""

import abc
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from scipy.special import expit

from bert_jax.base.errors import UserError
from bert_jax.tasks import scores
from bert_jax.tasks.task import Task
from bert_jax.tasks.token_rows import Example, ExampleRows
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.tables import TableRow, read_rows


class ExampleTask(Task):
    """A task with one label for each example, or several; see `Task`. Subclasses read the examples.

    Attributes:
      multi_label: Whether an example may have any number of labels.
      threshold: The probability from which such a label is predicted.
      has_choices: Whether the label is the place of one of the texts of an example.
    """

    multi_label = False
    has_choices = False
    threshold = 0.5

    @abc.abstractmethod
    def examples(self, source: epath.Path, split: str, bad_rows: BadRecords) -> Iterator[Example]:
        """Yields the examples of a file; see `read`."""

    def read(self, source: epath.Path, split: str, bad_rows: BadRecords) -> ExampleRows:
        is_class = (self.labels or self.has_choices) and not self.multi_label
        label_type = np.int32 if is_class else np.float32
        examples = self.examples(source, split, bad_rows)
        rows = ExampleRows(
            examples,
            self._tokenizer,
            self._max_seq_length,
            label_type,
            self.has_choices,
            self._long_texts == "windows",
        )
        self.check_not_empty(source, split, rows)
        return rows

    def score(self, rows: ExampleRows, outputs: dict[str, np.ndarray]) -> scores.Scores:
        logits = outputs["logits"]
        found = self.score_predictions(rows, self.predictions(outputs), logits)
        if self.multi_label:
            found |= scores.best_threshold(self._right(rows), expit(logits))
        return found

    def baseline(self, rows: ExampleRows) -> scores.Scores:
        """Scores the most common class of the training rows, or their mean, for each row."""
        labels = self.rows("train").labels_N
        if self.multi_label:
            # A label is predicted if most rows have it; its share is its score.
            constant = labels.mean(axis=0, keepdims=True)
            shares = np.broadcast_to(constant, rows.labels_N.shape)
            return self.score_predictions(rows, shares > 0.5, shares)
        constant = np.bincount(labels).argmax() if self.labels else labels.mean()
        return self.score_predictions(rows, np.full(len(rows.ids), constant), None)

    def class_table(
        self, rows: ExampleRows, outputs: dict[str, np.ndarray]
    ) -> list[dict[str, Any]]:
        """See `scores.class_table`; empty without classes."""
        if not self.labels or self.has_choices:
            return []
        return scores.class_table(self._right(rows), self.predictions(outputs), self.labels)

    def class_counts(self) -> dict[str, int]:
        if not self.labels or self.has_choices:
            return {}
        labels = self._right(self.rows("train"))
        counts_C = scores.count(labels, labels, len(self.labels)).support_C
        return dict(zip(self.labels, counts_C.tolist(), strict=True))

    def predictions(self, outputs: dict[str, np.ndarray]) -> np.ndarray:
        """Returns the class of each row, int64 [N], its labels, bool [N, C], or its number [N]."""
        logits = outputs["logits"]
        if self.multi_label:
            return expit(logits) > self.threshold
        return np.argmax(logits, axis=-1) if self.labels else logits[:, 0]

    def _right(self, rows: ExampleRows) -> np.ndarray:
        return rows.labels_N > 0 if self.multi_label else rows.labels_N

    def score_predictions(
        self, rows: ExampleRows, predictions: np.ndarray, logits: np.ndarray | None
    ) -> scores.Scores:
        """Scores the result of `predictions`; the logits are needed for sets of labels only."""
        if self.multi_label:
            return scores.label_scores(self._right(rows), predictions, logits)
        if self.labels:
            return scores.class_scores(rows.labels_N, predictions, len(self.labels))
        return scores.regression_scores(rows.labels_N, predictions)


class SentenceTask(ExampleTask):
    """A class or a number for a sentence or a pair, read from the columns of a file.

    A subclass sets these attributes:

    Attributes:
      text_columns: The columns of the one or two sentences.
      label_columns: The column of the label or the number, or one for each of several labels.
      id_columns: The columns that a test file needs for `id_of`.
      label_values: The spelling of the labels in the file, in the order of `labels`.
      limits: The lowest and the highest number that are allowed; None for no limits.
    """

    head = "sequence_classification"
    text_columns: Sequence[str]
    label_columns: Sequence[str]
    id_columns: Sequence[str] = ()
    label_values: Sequence[str] = ()
    limits: tuple[float, float] | None = None

    def examples(self, source: epath.Path, split: str, bad_rows: BadRecords) -> Iterator[Example]:
        if self._long_texts == "windows" and len(self.text_columns) > 1:
            raise UserError(
                "config.data.long_texts is windows, but the examples are pairs "
                f"({', '.join(self.text_columns)}), which can only be truncated"
            )
        # A test file needs no labels, and none are read.
        is_test = split.startswith("test")
        needed = (*self.text_columns, *(self.id_columns if is_test else self.label_columns))
        # A column for each label has numbers.
        is_one = len(self.label_columns) == 1
        options = {
            "header": self.header(split),
            "lists": self.label_columns if self.multi_label and is_one else (),
            "class_names": bool(self.labels) and is_one,
        }
        rows = read_rows(source, needed, bad_rows, **options)
        for row in self.part(split, rows):
            with bad_rows.catching(row.where):
                label = None if is_test else self._label(row.values)
                texts = [row.values[column] for column in self.text_columns]
                if not is_test and not all(text.strip() for text in texts):
                    raise BadRecord("empty sentence", "a sentence is empty")
                first, second = (*texts, "")[:2]
                yield Example(self.id_of(row, split), [(first, second or None)], label)

    def header(self, split: str) -> Sequence[str]:
        """Returns the names of the columns if the file has no header; otherwise nothing."""
        return ()

    def id_of(self, row: TableRow, split: str) -> str:
        """Returns the name of a row in predictions."""
        return str(row.number)

    def label_names(self, values: Mapping[str, Any]) -> list[str]:
        """Returns the names of the labels of a row, one unless the task has `multi_label`."""
        return [values[self.label_columns[0]].strip()]

    def _label(self, values: Mapping[str, Any]) -> int | float | list[float]:
        names, column = self.label_names(values), ",".join(self.label_columns)
        if self.labels:
            spelled = [spelling(name) for name in names]
            for name, known in zip(names, spelled, strict=True):
                if known not in self.label_values:
                    labels = ", ".join(self.label_values[:20])
                    detail = f"{column} is {name!r}, not one of the labels {labels}"
                    raise BadRecord("unknown label", detail)
            if self.multi_label:
                return [float(label in spelled) for label in self.label_values]
            return self.label_values.index(spelled[0])
        number = as_number(names[0])
        low, high = self.limits or (-np.inf, np.inf)
        if number is None or not low <= number <= high:
            limits = f" from {low:g} to {high:g}" if self.limits else ""
            detail = f"{column} is {names[0]!r}, not a number{limits}"
            raise BadRecord("not a number", detail)
        return number


def spelling(label: str) -> str:
    """Returns what all formats write for one label: true for True, and 1 for 1.0."""
    return label.lower() if label in ("True", "False") else re.sub(r"^(-?\d+)\.0$", r"\1", label)


def as_number(text: str) -> float | None:
    """Parses a number that is finite in float32; None if the text is not one."""
    try:
        # Python reads 1_000 as a number; in a table it is more likely something else.
        number = float("" if "_" in text else text)
    except ValueError:
        return None
    return number if abs(number) <= float(np.finfo(np.float32).max) else None
