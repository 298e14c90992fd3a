"""Rows of unequal lengths in one array, padded only when a batch is taken."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


class Ragged(NamedTuple):
    """Row i is values[starts[i] : starts[i + 1]].

    `values` is int32 [T, ...], `starts` int64 [N + 1].
    """

    values: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[np.ndarray], shape: tuple[int, ...] = ()) -> "Ragged":
        """Puts rows of int32 [length, *shape] one after the other."""
        rows = [np.zeros((0, *shape), np.int32), *rows]
        starts = np.cumsum([len(row) for row in rows], dtype=np.int64)
        return cls(np.concatenate(rows).astype(np.int32, copy=False), starts)

    def row(self, index: int) -> np.ndarray:
        """A view of one row."""
        return self.values[self.starts[index] : self.starts[index + 1]]

    @property
    def num_rows(self) -> int:
        return len(self.starts) - 1


def padded(rows: Sequence[np.ndarray], length: int, value: int = 0) -> np.ndarray:
    """int32 [n, length] of rows that are no longer than that, filled up with `value`."""
    result_NxL = np.full((len(rows), length), value, np.int32)
    for row, values in zip(result_NxL, rows, strict=True):
        row[: len(values)] = values
    return result_NxL
