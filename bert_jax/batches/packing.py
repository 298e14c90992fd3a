"""Puts several sequences into a row, so that less of a batch is padding.

A sequence is what a row builder plans as a row, such as a pair. The sequences of a window are
planned and shuffled as usual. Then all are packed at once, the longest first, each into the row
whose room it fills best (best fit decreasing, on the histogram of lengths). Rows are shuffled
afterwards, because packing sorts them by length.

The order of rows, and the masks of a sequence, depend only on (seed, stage, epoch, window).
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax.base.batch import BatchFields, HostBatch, shared_row_fields, weights_name
from bert_jax.batches.random_keys import CORRUPTION_TAG, ROW_ORDER_TAG, keyed_generator, random_key
from bert_jax.batches.rows.windows import WindowedRows, occurrences, select_rows

# Single sequences are padded to the length of a row before they are packed, which takes about 60
# bytes for each position: 250 MB for this many.
_POSITIONS_AT_ONCE = 2**22


@dataclasses.dataclass(frozen=True, eq=False)
class _PackedWindow:
    """A window and the plan of its sequences, row after row."""

    epoch: int
    number: int
    plan: Any


class SharedPlan(NamedTuple):
    """R rows, each with consecutive sequences of a window."""

    window_R: np.ndarray  # _PackedWindow
    first_R: np.ndarray  # int64, the number of the first sequence in the window's plan
    size_R: np.ndarray  # int64, the number of sequences, from 1 to P


class SharedRows:
    """Rows that up to P sequences share; `windows`, `count` and `plan` as in `WindowedRows`.

    Args:
      rows: Plans the sequences. Has a method `lengths`.
      fields: The fields that the corruption adds to the sequences.

    Attributes:
      fields: The arrays that `build` returns.
    """

    def __init__(self, rows: WindowedRows, fields: BatchFields):
        self._rows, self._spec = rows, rows.spec
        self._sequence_fields = {**rows.fields, **fields}
        self.fields = shared_row_fields(self._sequence_fields)

    def windows(self, epoch: int) -> list[np.ndarray]:
        return self._rows.windows(epoch)

    def count(self, epoch: int, window: int) -> int:
        return len(self.plan(epoch, window).size_R)

    def plan(self, epoch: int, window: int) -> SharedPlan:
        """Plans the rows of a window, shuffled."""
        spec, plan = self._spec, self._rows.plan(epoch, window)
        lengths_N = self._rows.lengths(plan)
        order_N, size_R = pack(lengths_N, spec.max_seq_length, spec.max_pairs_per_row)
        rng = keyed_generator(spec.seed, spec.stage, epoch, window, ROW_ORDER_TAG)
        row_R = rng.permutation(len(size_R))
        old_first_R, size_R = (np.cumsum(size_R) - size_R)[row_R], size_R[row_R]
        first_R = np.cumsum(size_R) - size_R
        order_N = order_N[np.repeat(old_first_R - first_R, size_R) + np.arange(len(order_N))]
        packed = _PackedWindow(epoch, window, select_rows(plan, order_N))
        return SharedPlan(np.full(len(size_R), packed, object), first_R, size_R)

    def build(
        self, plan: SharedPlan, make_sequences: Callable[[Any, np.ndarray, int], HostBatch]
    ) -> HostBatch:
        """Makes consecutive rows.

        Args:
          plan: The rows, which may belong to several windows.
          make_sequences: Makes a batch with one sequence per row from the plan of consecutive
            sequences of a window, the key of the window's masks, and the number of the first
            sequence in the window.

        Returns:
          The arrays of `fields`; see `shared_row_fields`.
        """
        spec, num_rows, parts = self._spec, len(plan.size_R), []
        size = max(1, _POSITIONS_AT_ONCE // (spec.max_seq_length * spec.max_pairs_per_row))
        ends = np.flatnonzero(plan.window_R[1:] != plan.window_R[:-1]) + 1
        ends = np.union1d(ends, np.arange(size, num_rows, size))
        for rows in np.split(np.arange(num_rows), ends):
            window, first, size_R = plan.window_R[rows[0]], plan.first_R[rows[0]], plan.size_R[rows]
            sequences = select_rows(window.plan, slice(first, first + size_R.sum()))
            key = (spec.seed, spec.stage, window.epoch, window.number, CORRUPTION_TAG)
            batch = make_sequences(sequences, random_key(*key), int(first))
            parts.append(self._share(batch, size_R))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _share(self, batch: HostBatch, size_R: np.ndarray) -> HostBatch:
        """Copies a batch of single sequences into rows with `size_R` consecutive ones each."""
        spec, num_rows = self._spec, len(size_R)
        sizes = spec.max_seq_length, spec.max_predictions_per_seq, spec.max_pairs_per_row
        shared = {
            name: np.zeros(field.shape(num_rows, *sizes), field.dtype)
            for name, field in self.fields.items()
        }
        shared["input_ids"][:] = self._rows.tokenizer.pad_id
        row_N = np.repeat(np.arange(num_rows), size_R)
        place_N = occurrences(row_N)
        length_N = batch["attention_mask"].sum(axis=1)
        before_N = np.cumsum(length_N) - length_N
        start_N = before_N - before_N[np.cumsum(size_R) - size_R][row_N]

        sequence_T, column_T = np.nonzero(batch["attention_mask"])
        target_T = row_N[sequence_T], start_N[sequence_T] + column_T
        for name, field in self._sequence_fields.items():
            if field.dimensions == "BL":
                shared[name][target_T] = batch[name][sequence_T, column_T]
            elif field.dimensions == "B":
                shared[name][row_N, place_N] = batch[name]
                shared[weights_name(name)][row_N, place_N] = 1
        shared["attention_mask"][target_T] = place_N[sequence_T] + 1
        shared["position_ids"][target_T] = column_T
        shared["cls_positions"][row_N, place_N] = start_N
        self._share_predictions(batch, shared, row_N, start_N)
        return shared

    def _share_predictions(
        self, batch: HostBatch, shared: HostBatch, row_N: np.ndarray, start_N: np.ndarray
    ) -> None:
        """Copies the predictions of the sequences, one after another, up to M in a row.

        Most corruptions never predict more than M tokens in a row, because the config provides
        for it. The others lose predictions at the end of the row; the tokens are restored.
        """
        fields = {
            name: field for name, field in self._sequence_fields.items() if field.dimensions == "BM"
        }
        if not fields:
            return
        weights = [batch[name] for name, field in fields.items() if field.dtype == "float32"]
        sequence_T, slot_T = np.nonzero(np.any(weights, axis=0))
        row_T, start_T = row_N[sequence_T], start_N[sequence_T]
        place_T = occurrences(row_T)
        fits_T = place_T < self._spec.max_predictions_per_seq
        for name, field in fields.items():
            value_T = batch[name][sequence_T, slot_T] + (start_T if field.high == "L" else 0)
            shared[name][row_T[fits_T], place_T[fits_T]] = value_T[fits_T]
        if not fits_T.all():
            positions_T = batch["masked_lm_positions"][sequence_T, slot_T] + start_T
            ids_T = batch["masked_lm_ids"][sequence_T, slot_T]
            shared["input_ids"][row_T[~fits_T], positions_T[~fits_T]] = ids_T[~fits_T]


def pack(
    length_N: np.ndarray, max_length: int, max_sequences: int
) -> tuple[np.ndarray, np.ndarray]:
    """Packs sequences into rows. The number of rows depends only on the histogram of the lengths.

    Args:
      length_N: int [N], each from 1 to `max_length`. Sequences of the same length keep their order.
      max_length: L, the room of a row.
      max_sequences: P, the largest number of sequences of a row.

    Returns:
      The indices of the sequences, row after row, int64 [N], and the number of sequences of each
      row, int64 [R].
    """
    counts = np.bincount(length_N, minlength=max_length + 1)
    patterns = list(_patterns(counts, max_sequences))
    lengths = np.array([length for pattern, count in patterns for length in pattern * count])
    order_N = np.empty(len(length_N), np.int64)
    order_N[np.argsort(lengths, kind="stable")] = np.argsort(length_N, kind="stable")
    size_K = np.array([len(pattern) for pattern, _ in patterns], np.int64)
    return order_N, np.repeat(size_K, [count for _, count in patterns])


def _patterns(count_L1: np.ndarray, max_sequences: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yields the lengths of the sequences of a row, and the number of such rows."""
    max_length = len(count_L1) - 1
    # By the room that is left: the rows that are not full.
    rows_L1: list[list[tuple[tuple[int, ...], int]]] = [[] for _ in range(max_length + 1)]
    for length in np.flatnonzero(count_L1)[::-1].tolist():
        left = int(count_L1[length])
        for room in range(length, max_length + 1):
            if room == max_length and left:
                rows_L1[room].append(((), left))
            while left and rows_L1[room]:
                pattern, number = rows_L1[room].pop()
                # Sequences of the same length go on filling a row while it has room.
                most = min(room // length, max_sequences - len(pattern))
                filled = min(number, left // most)
                rest = left % most if filled < number else 0
                for added, rows in ((most, filled), (rest, int(rest > 0))):
                    if rows:
                        new = (pattern + (length,) * added, rows)
                        if len(new[0]) == max_sequences:
                            yield new
                        else:
                            rows_L1[room - added * length].append(new)
                        number -= rows
                        left -= added * rows
                if number and pattern:
                    rows_L1[room].append((pattern, number))
            if not left:
                break
    for rows in rows_L1:
        yield from rows
