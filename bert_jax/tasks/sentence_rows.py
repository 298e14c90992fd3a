"""Examples of one sentence or a pair: from texts to tokenized rows."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tasks.ragged import Ragged
from bert_jax.tokenizers import Tokenizer

# Texts tokenized at a time: the others wait in their file.
_CHUNK = 2048


class Example(NamedTuple):
    """One row of a data set as text.

    Attributes:
      where: FILE:LINE.
      text, text_b: The sentence, and the second of a pair.
      label: A class or a number; None where it is not known.
      index: What the data set calls the row, for predictions.
    """

    where: str
    text: str
    text_b: str | None
    label: int | float | None
    index: str


class BadRows:
    """What is done with rows that cannot be used.

    Attributes:
      dropped: How many were left out, by reason.
    """

    def __init__(self, skip: bool):
        self._skip = skip
        self.dropped: Counter[str] = Counter()

    def bad(self, reason: str, where: str, detail: str, must_stay: bool = False) -> None:
        """Counts a bad row, or raises UserError if these are refused.

        Args:
          reason: What is wrong, in a word or two, as it is counted.
          where: FILE:LINE.
          detail: What is wrong, in full.
          must_stay: It cannot be left out: every row of a test set is to be predicted.
        """
        if must_stay:
            raise UserError(f"{where}: {detail}")
        if not self._skip:
            raise UserError(f"{where}: {detail} (--config.data.bad_rows=skip leaves such rows out)")
        self.dropped[reason] += 1


class SentenceRows:
    """Tokenized examples of one split; see `bert_jax.tasks.task.Rows`.

    A sequence is [CLS] A [SEP] or [CLS] A [SEP] B [SEP]. Of a pair that is too long the
    longer text loses its last token until it fits (run_classifier.py).

    Args:
      examples: Read once, a few at a time.
      tokenizer: Its vocabulary is the model's.
      max_seq_length: Tokens of a sequence, special ones included.
      label_type: Of `labels_N`: np.int32 or np.float32.

    Attributes:
      labels_N: -1 (NaN of numbers) where no label is known.
      index_N: The examples' own names.
    """

    def __init__(
        self,
        examples: Iterable[Example],
        tokenizer: Tokenizer,
        max_seq_length: int,
        label_type: type = np.int32,
    ):
        self._tokenizer, self._length = tokenizer, max_seq_length
        first_lengths: list[int] = []
        labels: list[int | float] = []
        self.index_N: list[str] = []
        unknown = -1 if label_type is np.int32 else np.nan

        def rows() -> Iterator[np.ndarray]:
            for example, ids, first_length in self._encoded(iter(examples)):
                first_lengths.append(first_length)
                labels.append(unknown if example.label is None else example.label)
                self.index_N.append(example.index)
                yield ids

        self._ids = Ragged.of(rows())
        self._first_length_N = np.array(first_lengths, np.int32)
        self.labels_N = np.array(labels, label_type)

    def __len__(self) -> int:
        return len(self.labels_N)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        at_L = np.arange(self._length)
        starts_N, stops_N = self._ids.starts[indices], self._ids.starts[indices + 1]
        mask_NxL = at_L < (stops_N - starts_N)[:, None]
        place_NxL = np.minimum(starts_N[:, None] + at_L, len(self._ids.values) - 1)
        second_NxL = mask_NxL & (at_L >= self._first_length_N[indices][:, None])
        return {
            "input_ids": np.where(mask_NxL, self._ids.values[place_NxL], self._tokenizer.pad_id),
            "token_type_ids": second_NxL.astype(np.int32),
            "attention_mask": mask_NxL.astype(np.int32),
            "labels": self.labels_N[indices],
        }

    def fingerprint_texts(self) -> Iterator[str]:
        return iter(self.index_N)

    def _encoded(self, examples: Iterator[Example]) -> Iterator[tuple[Example, np.ndarray, int]]:
        """Each example's ids, and how many of them are [CLS] A [SEP]."""
        encode = self._tokenizer.encode_batch
        cls, sep = (
            np.array([i], np.int32) for i in (self._tokenizer.cls_id, self._tokenizer.sep_id)
        )
        while chunk := list(islice(examples, _CHUNK)):
            firsts = encode([example.text for example in chunk])
            seconds = encode([example.text_b or "" for example in chunk])
            for example, a, b in zip(chunk, firsts, seconds, strict=True):
                if example.text_b is None:
                    a = a[: self._length - 2]
                    yield example, np.concatenate([cls, a, sep]), len(a) + 2
                else:
                    a, b = truncated_pair(a, b, self._length - 3)
                    yield example, np.concatenate([cls, a, sep, b, sep]), len(a) + 2


def truncated_pair(a: np.ndarray, b: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts the longer one's end, token by token, until both together are that long.

    Of two of the same length it is the second that is cut, as in run_classifier.py.
    """
    excess = max(0, len(a) + len(b) - length)
    # First the longer down to the other's length, then both in turn, the second first.
    from_longer = min(excess, abs(len(a) - len(b)))
    rest = excess - from_longer
    cut_a = from_longer * (len(a) > len(b)) + rest // 2
    cut_b = from_longer * (len(b) > len(a)) + rest - rest // 2
    return a[: len(a) - cut_a], b[: len(b) - cut_b]
