"""Holds token sequences of unequal lengths in one array and pads them in batches."""

import hashlib
import json
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from bert_jax.tokenizers import Tokenizer, TokenRow

# The number of texts that are tokenized together.
_CHUNK = 2048
# Fingerprints of rows depend on it.
_ROWS_AT_ONCE = 4096


class TokenRows:
    """The tokenized examples of one split, which `take` pads.

    The tokens are in a memory-mapped file without a name, in the system's temporary folder.

    Args:
      max_seq_length: The length of padded sequences.

    Attributes:
      PER_TOKEN: The arrays of `take` whose last axis is the length of a sequence.
      unknown_fraction: The fraction of unknown tokens.
      is_cut_N: Whether each sequence lost tokens because it was too long.
    """

    PER_TOKEN: tuple[str, ...] = ("input_ids", "token_type_ids", "attention_mask")

    def __init__(self, rows: Iterable[TokenRow], tokenizer: Tokenizer, max_seq_length: int):
        self._pad_id, self.max_seq_length = tokenizer.pad_id, max_seq_length
        # These are compact: there may be many millions of rows.
        lengths, first_lengths, left_out = array("i", [0]), array("i"), array("i")
        is_cut = array("b")
        with tempfile.TemporaryFile() as file:
            for row in rows:
                is_cut.append(row.num_cut > 0)
                file.write(row.input_ids_L.astype(np.int32).tobytes())
                lengths.append(len(row.input_ids_L))
                first_lengths.append(row.num_first)
                left_out.append(row.num_left_out)
            # An empty file cannot be mapped into memory.
            ids = np.memmap(file, np.int32, "r") if first_lengths else np.zeros(0, np.int32)
        # Row i is ids[starts[i] : starts[i + 1]].
        self._ids = ids.view(np.ndarray)
        self.unknown_fraction = tokenizer.unknown_fraction(self._ids)
        self._starts = np.cumsum(lengths, dtype=np.int64)
        self._num_first_N = np.array(first_lengths, np.int32)
        self._num_left_out_N = np.array(left_out, np.int32)
        self.is_cut_N = np.array(is_cut, bool)

    def __len__(self) -> int:
        return len(self._num_first_N)

    @property
    def num_examples(self) -> int:
        """The number of examples in the file, of which each may have several rows."""
        return len(self)

    def described(self) -> str:
        """Says what an example has beside a text or a pair; empty if nothing."""
        return ""

    def truncated(self) -> str:
        """Says how many sequences lost tokens; empty if none did."""
        return truncation(self.is_cut_N, self.max_seq_length)

    def __iter__(self) -> Iterator[TokenRow]:
        for index, num_first in enumerate(self._num_first_N):
            ids_L = self._ids[self._starts[index] : self._starts[index + 1]]
            yield TokenRow(ids_L, int(num_first))

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns some of the examples, in the order of the indices.

        Returns:
          "input_ids", "token_type_ids" and "attention_mask", int32 [n, L], or [n, C, L] for C
          choices. L is the same in every call. Subclasses add the labels of the head: "labels",
          which is int32 [n] (classes, or the right choice), float32 [n] (regression), float32
          [n, C] (several labels a row) or int32 [n, L] with -1 where nothing is scored (tags); or
          "start_positions" and "end_positions", int32 [n] (spans). The attention mask is 2 at the
          `num_left_out` first tokens of a row; see `EmbeddingModel`.
        """
        at_L = np.arange(self.max_seq_length)
        starts_N, stops_N = self._starts[indices], self._starts[indices + 1]
        mask_NxL = at_L < (stops_N - starts_N)[:, None]
        second_NxL = mask_NxL & (at_L >= self._num_first_N[indices][:, None])
        left_out_NxL = mask_NxL & (at_L < self._num_left_out_N[indices][:, None])
        index_NxL = np.minimum(starts_N[:, None] + at_L, len(self._ids) - 1)
        return {
            "input_ids": np.where(mask_NxL, self._ids[index_NxL], np.int32(self._pad_id)),
            "token_type_ids": second_NxL.astype(np.int32),
            "attention_mask": mask_NxL.astype(np.int32) + left_out_NxL,
        }

    def draw(self, indices: np.ndarray, seed: int, step: int) -> dict[str, np.ndarray]:
        """Returns the examples of a step of training, of which a subclass may draw a part."""
        return self.take(indices)

    @property
    def parts(self) -> Sequence[range]:
        """Ranges of rows; a batch of a prediction has rows of one range only."""
        return (range(len(self)),)

    def compact(self, outputs: dict[str, np.ndarray], vocab_size: int) -> dict[str, Any]:
        """Returns the outputs of a batch in a form that needs less memory, if rows have one."""
        return outputs

    def of_examples(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of the examples, from a model's outputs for all sequences."""
        return outputs

    def fingerprint(self) -> str:
        """Computes the SHA-256 of all arrays and texts."""
        digest = hashlib.sha256()
        for first in range(0, len(self), _ROWS_AT_ONCE):
            batch = self.take(np.arange(first, min(first + _ROWS_AT_ONCE, len(self))))
            for name in sorted(batch):
                digest.update(np.ascontiguousarray(batch[name]).tobytes())
        for text in self.fingerprint_texts():
            digest.update(json.dumps(text).encode())
        return digest.hexdigest()

    def fingerprint_texts(self) -> Iterator[str]:
        """Yields the ids, answers and texts on which scores and predictions depend."""
        return iter(())


def truncation(is_cut_N: np.ndarray, length: int, key: str = "data.max_seq_length") -> str:
    """Says how many sequences lost tokens, and which key limits them; empty if none did."""
    if not is_cut_N.any():
        return ""
    count = f"{np.sum(is_cut_N):,} of {len(is_cut_N):,} sequences"
    return f"{count} are truncated to {length} tokens (config.{key})"


class Example(NamedTuple):
    """One example as text.

    Attributes:
      id: The name of the example in the data set, for predictions.
      texts: A sentence and None, or a pair; for multiple choice, such a pair for each choice.
      label: A class, a number, the right choice, or 1 or 0 for each label of a task with several;
        None if it is not known.
    """

    id: str
    texts: list[tuple[str, str | None]]
    label: int | float | list[float] | None


class ExampleRows(TokenRows):
    """Rows of `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`; see `TokenRows`.

    Args:
      examples: Read once, in chunks.
      tokenizer, max_seq_length: See `TokenRows`. Longer texts are truncated.
      has_choices: Whether rows have an axis of choices. All examples have the same number.
      in_windows: Whether a text that is too long is divided into `windows`, each with the label of
        the example; the outputs of the example are their mean. Otherwise it is truncated.

    Attributes:
      labels_N: -1 or NaN where the label is not known; float32 [N, C] with several labels a row.
    """

    def __init__(
        self,
        examples: Iterable[Example],
        tokenizer: Tokenizer,
        max_seq_length: int,
        label_type: type = np.int32,
        has_choices: bool = False,
        in_windows: bool = False,
    ):
        self.ids: list[str] = []
        labels: list[int | float | list[float]] = []
        unknown = -1 if label_type is np.int32 else np.nan

        def texts() -> Iterator[tuple[str, str | None]]:
            for example in examples:
                self.ids.append(example.id)
                labels.append(unknown if example.label is None else example.label)
                yield from example.texts

        # The number of sequences of each example.
        sizes: list[int] = []

        def sequences() -> Iterator[TokenRow]:
            # Only a window may be longer than all rows.
            length = None if in_windows else max_seq_length
            for row in tokenized(texts(), tokenizer, length):
                parts = windows(row, tokenizer, max_seq_length) if in_windows else [row]
                sizes.append(len(parts))
                yield from parts

        super().__init__(sequences(), tokenizer, max_seq_length)
        self.labels_N = np.array(labels, label_type)
        self._num_choices = len(sizes) // max(1, len(labels)) if has_choices else None
        self._example_R = np.repeat(np.arange(len(sizes)), sizes)

    def __len__(self) -> int:
        return len(self.ids) if self._num_choices else len(self._example_R)

    def of_examples(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if len(self) == len(self.ids):
            return outputs
        first_N = np.searchsorted(self._example_R, np.arange(len(self.ids)))
        size_Nx1 = np.bincount(self._example_R)[:, None]
        # The mean of the logits of the windows.
        return {name: np.add.reduceat(x, first_N) / size_Nx1 for name, x in outputs.items()}

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        if self._num_choices is None:
            batch = super().take(indices)
        else:
            rows_nxC = indices[:, None] * self._num_choices + np.arange(self._num_choices)
            batch = {
                name: array.reshape(*rows_nxC.shape, -1)
                for name, array in super().take(rows_nxC.ravel()).items()
            }
        examples = indices if self._num_choices else self._example_R[indices]
        return batch | {"labels": self.labels_N[examples]}

    def fingerprint_texts(self) -> Iterator[str]:
        return iter(self.ids)


def windows(row: TokenRow, tokenizer: Tokenizer, max_seq_length: int) -> list[TokenRow]:
    """Divides the row of a single text into rows of nearly equal length, without overlap.

    Sun et al. 2019 (arXiv:1905.05583, section 5.3.1) compare this with truncation.
    """
    before = len(tokenizer.template.before)
    after = tokenizer.template.num_special(is_pair=False) - before
    ids = row.input_ids_L[before : len(row.input_ids_L) - after]
    number = max(1, -(-len(ids) // (max_seq_length - before - after)))
    return [tokenizer.join(part) for part in np.array_split(ids, number)]


def tokenized(
    texts: Iterable[tuple[str, str | None]], tokenizer: Tokenizer, max_seq_length: int | None
) -> Iterator[TokenRow]:
    """Tokenizes texts and pairs in chunks, and cuts them to `max_seq_length`, if any."""
    texts = iter(texts)
    while chunk := list(islice(texts, _CHUNK)):
        firsts = tokenizer.encode_batch([a for a, _ in chunk])
        seconds = tokenizer.encode_batch([b or "" for _, b in chunk])
        for (_, text_b), a, b in zip(chunk, firsts, seconds, strict=True):
            yield tokenizer.join(a, None if text_b is None else b, max_length=max_seq_length)
