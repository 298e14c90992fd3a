"""What fine-tuning asks of a task: rows, labels, a score, predictions in its own format."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from etils import epath


class Rows(Protocol):
    """Examples of one split, tokenized; padded only when they are taken."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Some of the examples, in the order asked for.

        Args:
          indices: int [n], each from 0 to len(self) - 1.

        Returns:
          "input_ids", "token_type_ids" and "attention_mask", [n, L] int32 ([n, C, L] of C
          choices), and what the head is trained on: "labels", int32 [n] (classes, or the
          right choice), float32 [n] (regression) or int32 [n, L] with -1 where nothing is
          scored (tags); "start_positions" and "end_positions", int32 [n] (spans). L is the
          same in every call.
        """
        ...

    def fingerprint_texts(self) -> Iterator[str]:
        """What scores and predictions need of the examples beside the arrays, as texts.

        Names, right answers, what they are cut out of: where it differs, so may these.
        """
        ...


class Task(Protocol):
    """A task, its data read and its words known.

    Attributes:
      name: "mrpc".
      head: "sequence_classification", "token_classification", "question_answering" or
        "multiple_choice".
      labels: Their names in the order of the logits; empty of regression and question
        answering.
      metric: Which of the scores the best checkpoint is judged by; higher is better.
      splits: What `rows` knows: "train", "validation", "test" and the like
        ("validation_mismatched"). Splits that begin with "validation" are scored, those that
        begin with "test" are predicted.
    """

    name: str
    head: str
    labels: tuple[str, ...]
    metric: str
    splits: tuple[str, ...]

    def rows(self, split: str) -> Rows:
        """The split's examples, read and tokenized when first asked for.

        Raises:
          UserError: a row is bad and such are refused; names file and line.
        """
        ...

    def score(self, split: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """The official metrics of a split.

        Args:
          split: One whose labels are known.
          outputs: float32 "logits" of its rows in order, [N, labels] (regression: [N, 1]),
            [N, L, labels] of tags or [N, C] of choices; or "start_logits" and "end_logits",
            [N, L].
        """
        ...

    def write_predictions(
        self, split: str, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes the predictions as the task's leaderboard, or its users, expect them.

        Args:
          split: Any of `splits`.
          outputs: As for `score`.
          path: The file to write.
        """
        ...

    def predictions_name(self, split: str) -> str:
        """How that file is to be called: "MRPC.tsv"."""
        ...
