"""The interface of fine-tuning tasks: rows, scores and predictions."""

import abc
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from etils import epath

from bert_jax.data.bad_records import BadRecords


class Rows(Protocol):
    """The tokenized examples of one split, which are padded when they are taken."""

    def __len__(self) -> int:
        """Returns the number of examples."""
        ...

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns some of the examples, in the order of the indices.

        Args:
          indices: int [n], each from 0 to len(self) - 1.

        Returns:
          "input_ids", "token_type_ids" and "attention_mask", int32 [n, L], or [n, C, L] for C
          choices. L is the same in every call. Also the labels of the head: "labels", which is
          int32 [n] (classes, or the right choice), float32 [n] (regression) or int32 [n, L] with
          -1 where nothing is scored (tags); or "start_positions" and "end_positions", int32
          [n] (spans).
        """
        ...

    def fingerprint_texts(self) -> Iterator[str]:
        """Yields what scores and predictions depend on besides the arrays: ids, answers, texts."""
        ...


class Task(abc.ABC):
    """A task and its data.

    Args:
      splits: See the attribute.
      bad_rows: "refuse" or "skip"; what to do with examples that cannot be used.

    Attributes:
      name: The value of `config.task`: "mrpc".
      head: "sequence_classification", "token_classification", "question_answering" or
        "multiple_choice".
      labels: The label names in the order of the logits. Empty for regression and question
        answering.
      metric: The score that selects the best checkpoint. Higher is better.
      splits: The names that `rows` accepts: "train", "validation", "test" or variants such as
        "validation_mismatched". Splits that begin with "validation" are scored, those that
        begin with "test" are predicted.
    """

    name: str
    head: str
    labels: tuple[str, ...] = ()
    metric: str

    def __init__(self, splits: tuple[str, ...], bad_rows: str):
        self.splits = splits
        self._bad_rows = BadRecords(bad_rows, "data.bad_rows")
        self._rows: dict[str, Rows] = {}

    @property
    def dropped(self) -> Counter[str]:
        """The number of skipped examples by reason, in the splits read so far."""
        return self._bad_rows.dropped

    def rows(self, split: str) -> Rows:
        """Returns the examples of a split, which are read at the first call.

        Raises:
          UserError: An example is bad, and bad ones are refused; names file and line.
        """
        if split not in self._rows:
            self._rows[split] = self.read_rows(split)
        return self._rows[split]

    @abc.abstractmethod
    def read_rows(self, split: str) -> Rows:
        """Reads and tokenizes a split."""

    @abc.abstractmethod
    def score(self, split: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Returns the official metrics of a split whose labels are known.

        Args:
          split: One of `splits`.
          outputs: The outputs for all rows in order, float32: "logits" [N, labels] (regression:
            [N, 1]), [N, L, labels] for tags or [N, C] for choices; or "start_logits" and
            "end_logits", [N, L].
        """

    @abc.abstractmethod
    def write_predictions(
        self, split: str, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes the predictions in the format of the task's leaderboard.

        Args:
          split: One of `splits`.
          outputs: See `score`.
          path: The file to write.
        """

    @abc.abstractmethod
    def predictions_name(self, split: str) -> str:
        """Returns the name for the file of predictions, such as "MRPC.tsv"."""
