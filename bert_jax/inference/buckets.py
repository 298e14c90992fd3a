"""Batches texts of any length into few shapes, because each shape is compiled once."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Rows are padded to these lengths. Texts are sorted by length, which keeps the padding small.
LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# The row counts of batches that are not full.
_ROWS = (1, 4, 16)


class Batch(NamedTuple):
    """The texts of a batch, and the shape of its arrays.

    Attributes:
      indices: The indices of the texts in the argument of `plan`.
      rows: The number of rows, at least the number of texts.
      length: The length to which rows are padded.
    """

    indices: list[int]
    rows: int
    length: int


def plan(lengths: Sequence[int], *, max_length: int, batch_tokens: int) -> Iterator[Batch]:
    """Divides texts into batches, the longest texts first.

    Args:
      lengths: The number of tokens in each text, at most `max_length`.
      max_length: The length of the longest row.
      batch_tokens: The number of tokens in a full batch, with padding.

    Yields:
      Batches, which together contain every text once.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    first = 0
    while first < len(order):
        length = bucket(lengths[order[first]], max_length)
        full = max(1, batch_tokens // length)
        indices = order[first : first + full]
        first += full
        fitting = (rows for rows in _ROWS if len(indices) <= rows < full)
        yield Batch(indices, next(fitting, full), length)


def bucket(length: int, max_length: int) -> int:
    """Returns the shortest of LENGTHS for `length` tokens, at most `max_length`."""
    return min(next((b for b in LENGTHS if length <= b), max_length), max_length)
