"""What GLUE and one's own tables share: a class or a number for a sentence or a pair."""

import abc
from collections import Counter
from collections.abc import Iterator

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tasks import scores as score_lib
from bert_jax.tasks.sentence_rows import BadRows, Example, SentenceRows
from bert_jax.tokenizers import Tokenizer


class SentenceTask(abc.ABC):
    """See `bert_jax.tasks.task.Task`; what remains is where examples come from.

    Args:
      name: The task's.
      labels: Their names; empty: regression.
      metric: See `Task`.
      splits: See `Task`.
      tokenizer: That of the model.
      max_seq_length: Tokens of a sequence, special ones included.
      bad_rows: "refuse" or "skip".
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
        self.name, self.labels, self.metric, self.splits = name, labels, metric, splits
        self._tokenizer, self._max_seq_length = tokenizer, max_seq_length
        self._bad_rows = BadRows(bad_rows == "skip")
        self._rows: dict[str, SentenceRows] = {}

    @property
    def dropped(self) -> Counter[str]:
        """Bad rows left out, by reason, of the splits read so far."""
        return self._bad_rows.dropped

    @abc.abstractmethod
    def examples(self, split: str) -> Iterator[Example]:
        """Reads a split."""

    def rows(self, split: str) -> SentenceRows:
        if split not in self._rows:
            rows = SentenceRows(
                self._checked(self.examples(split), must_stay=split.startswith("test")),
                self._tokenizer,
                self._max_seq_length,
                np.int32 if self.labels else np.float32,
            )
            if not len(rows):
                raise UserError(f"config.data.input: the {split} split of {self.name} has no rows")
            self._rows[split] = rows
        return self._rows[split]

    def score(self, split: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        labels_N, predictions_N = self.rows(split).labels_N, self.predictions(outputs)
        if not self.labels:
            r, rho = (f(labels_N, predictions_N) for f in (score_lib.pearson, score_lib.spearman))
            error_N = predictions_N.astype(np.float64) - labels_N
            mean_squared_error = float(np.mean(error_N**2))
            scores = {"pearson": r, "spearman": rho, "pearson_spearman": (r + rho) / 2}
            return scores | {"negative_mean_squared_error": -mean_squared_error}
        scores = {"accuracy": score_lib.accuracy(labels_N, predictions_N)}
        if len(self.labels) == 2:
            f1, accuracy = score_lib.f1(labels_N, predictions_N), scores["accuracy"]
            scores |= {"f1": f1, "f1_accuracy": (f1 + accuracy) / 2}
            scores["matthews"] = score_lib.matthews_correlation(labels_N, predictions_N)
        return scores

    def predictions(self, outputs: dict[str, np.ndarray]) -> np.ndarray:
        """The class of each row, int64 [N], or of regression its number, float32 [N]."""
        logits = outputs["logits"]
        return np.argmax(logits, axis=-1) if self.labels else logits[:, 0]

    def _checked(self, examples: Iterator[Example], must_stay: bool) -> Iterator[Example]:
        """Leaves out, or refuses, what has an empty sentence; a test's rows are all predicted."""
        for example in examples:
            texts = [text for text in (example.text, example.text_b) if text is not None]
            if must_stay or all(text.strip() for text in texts):
                yield example
            else:
                self._bad_rows.bad("empty sentence", example.where, "a sentence is empty")
