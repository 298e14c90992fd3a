"""Few shapes for texts of every length: each shape is a program that is compiled once."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Lengths that rows are padded to. Of texts sorted by length, little of a row is padding.
LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# A row count that no full batch has is one of these.
_ROWS = (1, 4, 16)


class Batch(NamedTuple):
    """Which texts go together, and the shape of the arrays that hold them.

    Attributes:
      indices: Places of the texts in what `plan` was given.
      rows: Rows of the batch; those beyond the texts are filled with any.
      length: Tokens a row is padded to.
    """

    indices: list[int]
    rows: int
    length: int


def plan(lengths: Sequence[int], *, max_length: int, batch_tokens: int) -> Iterator[Batch]:
    """Divides texts into batches, the longest texts first.

    Args:
      lengths: Tokens of each text, none above `max_length`.
      max_length: The longest that there can be; rows are never longer.
      batch_tokens: Tokens of a full batch, padding counted.

    Yields:
      Batches that hold every text once.
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
    """The shortest of LENGTHS that holds so many tokens, or `max_length`."""
    return min(next((b for b in LENGTHS if length <= b), max_length), max_length)
