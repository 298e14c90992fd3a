"""Rows read from a `RecordStore`, with the pairs and masks that its TFRecord files hold."""

from typing import Any, ClassVar, NamedTuple

import numpy as np

from bert_jax.base.batch import BatchFields
from bert_jax.batches.random_keys import RECORD_ORDER_TAG, permuted, random_key
from bert_jax.store.record_store import FIELDS, RecordStore

# The parts of a run on TFRecords: pairs and masks come from the records.
PARTS = {"rows": f"{__name__}:RecordRows", "corruption": "none"}
# The number of rows in a window.
_WINDOW_ROWS = 2**18


class RecordPlan(NamedTuple):
    """The numbers of N rows, counted over all rows of the stage's length."""

    index_N: np.ndarray  # int64


class RecordRows:
    """A row builder for a `RecordStore`; see `WindowedRows`.

    Each epoch has its own order of the rows: a keyed permutation that is computed, not stored.
    """

    fields: ClassVar[BatchFields] = FIELDS

    def __init__(self, store: RecordStore, tokenizer, spec):
        self._spec = spec
        selected = store.select(spec.max_seq_length, spec.max_predictions_per_seq)
        self._paths = [source["path"] for source, _ in selected]
        self._files = [rows for _, rows in selected]
        self._starts = np.cumsum([0, *map(len, self._files)])
        self._size = int(self._starts[-1])

    def windows(self, epoch: int) -> range:
        return range(-(-self._size // _WINDOW_ROWS))

    def count(self, epoch: int, window: int) -> int:
        return min(_WINDOW_ROWS, self._size - window * _WINDOW_ROWS)

    def plan(self, epoch: int, window: int) -> RecordPlan:
        first = window * _WINDOW_ROWS
        position_N = np.arange(first, first + self.count(epoch, window))
        key = random_key(self._spec.seed, self._spec.stage, epoch, 0, RECORD_ORDER_TAG)
        return RecordPlan(permuted(position_N, self._size, key))

    def assemble(self, plan: RecordPlan) -> dict[str, np.ndarray]:
        """Reads the rows; records with fewer predictions are padded with 0."""
        spec = self._spec
        sizes = len(plan.index_N), spec.max_seq_length, spec.max_predictions_per_seq
        batch = {name: np.zeros(field.shape(*sizes), field.dtype) for name, field in FIELDS.items()}
        file_N, row_N = self._locate(plan)
        for file in np.unique(file_N):
            inside = np.flatnonzero(file_N == file)
            rows = self._files[file][row_N[inside]]
            for name, array in batch.items():
                values = rows[name]
                array[(inside, *map(slice, values.shape[1:]))] = values
        return batch

    def describe(self, plan: RecordPlan) -> list[list[Any]]:
        """Returns [file, record number] of each row; records count from 1."""
        rows = zip(*self._locate(plan), strict=True)
        return [[self._paths[file], int(row) + 1] for file, row in rows]

    def _locate(self, plan: RecordPlan) -> tuple[np.ndarray, np.ndarray]:
        """Returns the file of each row and its position in that file."""
        file_N = np.searchsorted(self._starts, plan.index_N, side="right") - 1
        return file_N, plan.index_N - self._starts[file_N]
