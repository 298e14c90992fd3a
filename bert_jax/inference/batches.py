"""Runs a compiled program on rows of any length, in batches of few shapes.

Each shape is compiled once.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.inference.compiled_forward import Inputs
from bert_jax.tokenizers import TokenRow

# Rows are padded to these lengths. Texts are sorted by length, which keeps the padding small.
LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# The row counts of batches that are not full.
_ROWS = (1, 4, 16)
# Tokens in a full batch. On a CPU, their activations fit into the cache; an accelerator needs more
# tokens.
_BATCH_TOKENS = {"cpu": 1024}
_ACCELERATOR_BATCH_TOKENS = 2**15
# Batches that are computed while the results of earlier ones are copied.
_IN_FLIGHT = 2


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


def run_in_batches(
    rows: Sequence[TokenRow],
    program: Callable[[Inputs], jax.Array],
    *,
    max_length: int,
    source: str,
) -> list[np.ndarray]:
    """Runs all rows and returns the results of each row.

    Args:
      rows: Rows of at most `max_length` tokens.
      program: Returns an array with a result for each row of a batch.
      max_length: See `plan`.
      source: The path of the model, for messages.

    Raises:
      UserError: A result is NaN.
    """
    lengths = [len(row.input_ids_L) for row in rows]
    batch_tokens = _BATCH_TOKENS.get(jax.default_backend(), _ACCELERATOR_BATCH_TOKENS)
    batches = plan(lengths, max_length=max_length, batch_tokens=batch_tokens)
    results = [np.zeros(0)] * len(rows)
    running: deque[tuple[list[int], jax.Array]] = deque()

    def copy_oldest():
        indices, values = running.popleft()
        for i, value in zip(indices, np.asarray(values), strict=False):
            results[i] = value
        if any(np.isnan(results[i]).any() for i in indices):
            raise UserError(f"{source} computes NaN: its weights are damaged")

    for batch in batches:
        running.append((batch.indices, program(_padded(rows, batch))))
        if len(running) > _IN_FLIGHT:
            copy_oldest()
    while running:
        copy_oldest()
    return results


def plan(lengths: Sequence[int], *, max_length: int, batch_tokens: int) -> Iterator[Batch]:
    """Splits texts into batches, the longest texts first.

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
    """Finds the shortest of LENGTHS for `length` tokens, at most `max_length`."""
    return min(next((b for b in LENGTHS if length <= b), max_length), max_length)


def _padded(rows: Sequence[TokenRow], batch: Batch) -> Inputs:
    shape = (batch.rows, batch.length)
    ids_BxL, types_BxL = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    lengths_B = np.zeros(batch.rows, np.int32)
    for b, i in enumerate(batch.indices):
        row = rows[i]
        length = lengths_B[b] = len(row.input_ids_L)
        ids_BxL[b, :length] = row.input_ids_L
        types_BxL[b, row.num_first : length] = 1
    return Inputs(ids_BxL, types_BxL, lengths_B)
