"""Tasks with a class or a number for a sentence or a pair: GLUE and the user's own tables."""

import abc
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.data.bad_records import BadRecord
from bert_jax.errors import UserError
from bert_jax.tasks import scores as score_lib
from bert_jax.tasks.task import Task
from bert_jax.tasks.token_rows import TokenRows, tokenized
from bert_jax.tokenizers import Tokenizer


class Example(NamedTuple):
    """One example as text.

    Attributes:
      text, text_b: The sentence, and the second of a pair.
      label: A class or a number; None if it is not known.
      index: The name of the example in the data set, for predictions.
    """

    text: str
    text_b: str | None
    label: int | float | None
    index: str


class SentenceRows(TokenRows):
    """See `bert_jax.tasks.task.Rows`: `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    Args:
      examples: Read once, some at a time.
      label_type: np.int32 or np.float32.

    Attributes:
      labels_N: -1 or NaN where the label is not known.
      index_N: The names of the examples.
    """

    def __init__(
        self,
        examples: Iterable[Example],
        tokenizer: Tokenizer,
        max_seq_length: int,
        label_type: type = np.int32,
    ):
        labels: list[int | float] = []
        self.index_N: list[str] = []
        unknown = -1 if label_type is np.int32 else np.nan

        def texts() -> Iterator[tuple[str, str | None]]:
            for example in examples:
                labels.append(unknown if example.label is None else example.label)
                self.index_N.append(example.index)
                yield example.text, example.text_b

        rows = tokenized(texts(), tokenizer, max_seq_length)
        super().__init__(rows, tokenizer, max_seq_length)
        self.labels_N = np.array(labels, label_type)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        return super().take(indices) | {"labels": self.labels_N[indices]}

    def fingerprint_texts(self) -> Iterator[str]:
        return iter(self.index_N)


class SentenceTask(Task):
    """See `Task`; a subclass reads the examples.

    Args:
      labels: The label names; empty for regression.
    """

    head = "sequence_classification"

    def __init__(
        self,
        name: str,
        labels: tuple[str, ...],
        metric: str,
        splits: tuple[str, ...],
        tokenizer: Tokenizer,
        *,
        max_seq_length: int,
        bad_rows: str,
    ):
        super().__init__(splits, bad_rows)
        self.name, self.labels, self.metric = name, labels, metric
        self._tokenizer, self._max_seq_length = tokenizer, max_seq_length

    @abc.abstractmethod
    def examples(self, split: str) -> Iterator[Example]:
        """Reads a split."""

    def read_rows(self, split: str) -> SentenceRows:
        label_type = np.int32 if self.labels else np.float32
        rows = SentenceRows(self.examples(split), self._tokenizer, self._max_seq_length, label_type)
        if not len(rows):
            raise UserError(f"config.data.input: the {split} split of {self.name} has no rows")
        return rows

    def score(self, split: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        labels_N, predictions_N = self.rows(split).labels_N, self.predictions(outputs)
        if not self.labels:
            return score_lib.regression_scores(labels_N, predictions_N)
        return score_lib.class_scores(labels_N, predictions_N, len(self.labels))

    def predictions(self, outputs: dict[str, np.ndarray]) -> np.ndarray:
        """Returns the class of each row, int64 [N], or its number, float32 [N]."""
        logits = outputs["logits"]
        return np.argmax(logits, axis=-1) if self.labels else logits[:, 0]


def check_not_empty(example: Example, is_test: bool) -> Example:
    """Raises BadRecord if a sentence is empty. In a test set all rows are predicted."""
    texts = [text for text in (example.text, example.text_b) if text is not None]
    if not is_test and not all(text.strip() for text in texts):
        raise BadRecord("empty sentence", "a sentence is empty")
    return example
