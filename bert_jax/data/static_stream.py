"""Batches of static rows, each computed from its number.

A stage's stream is the rows of its length. Each epoch has its own order of them: a keyed
permutation that is computed, not stored.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.data.random_streams import RECORD_ORDER_TAG, permuted, random_key
from bert_jax.data.static_rows import FIELDS, StaticRows
from bert_jax.data.stream import Batch, Stream, StreamSpec
from bert_jax.errors import UserError


class StaticStream(Stream):
    """A stage's batches of static rows.

    Example n of the stage is row `n % N` of the N rows, in the order of epoch `n // N`.

    Args:
      rows: All rows; the stage takes those of its length.
      spec: See `StreamSpec`; what concerns row building and corruption has no effect.
      shards, num_shards: See `Stream`.

    Raises:
      UserError: As `StaticRows.select`.
    """

    def __init__(
        self,
        rows: StaticRows,
        spec: StreamSpec,
        *,
        shards: Sequence[int] = (0,),
        num_shards: int = 1,
    ):
        super().__init__(spec, FIELDS, shards, num_shards)
        self._sources = rows.sources
        self._parts = rows.select(spec.max_seq_length, spec.max_predictions_per_seq)
        self._starts = np.cumsum([0, *map(len, self._parts)])

    def position(self, step: int) -> dict[str, int]:
        """Returns where the first example of `step` lies, and the number of rows."""
        first = step * self.spec.batch_size
        rows = int(self._starts[-1])
        return {"epoch": first // rows, "first_example": first, "rows": rows}

    def describe_batch(self, step: int) -> dict[str, Any]:
        """Describes a global batch; `rows` has [file, number of the record from 1]."""
        size = self.spec.batch_size
        first = step * size
        places = []
        for part, row in zip(*self._places(np.arange(first, first + size)), strict=True):
            record = self._parts[part][row : row + 1]
            places.append([self._sources[int(record["source"][0])], int(record["record"][0])])
        return {
            "stage": self.spec.stage,
            "step": step,
            "first_example": first,
            "last_example": first + size - 1,
            "epoch": self.position(step)["epoch"],
            "rows": places,
        }

    def makers(
        self, first_step: int, num_steps: int, position: dict[str, int] | None
    ) -> Iterator[Callable[[], Batch]]:
        if position is not None:
            step, odd = divmod(position.get("first_example", -1), self.spec.batch_size)
            if odd or not 0 <= step <= first_step or position != self.position(step):
                raise UserError(
                    f"the input position {position} is none of this run's at step {first_step}: "
                    "the checkpoint belongs to other data, another batch size or stage"
                )
        steps = range(first_step, first_step + num_steps)
        return (functools.partial(self._batch, step) for step in steps)

    def _batch(self, step: int) -> Batch:
        """Reads this host's rows; records with fewer predictions are padded with 0."""
        part_B, row_B = self._places(step * self.spec.batch_size + self._host.row_R)
        batch = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self._signature().items()}
        for part in np.unique(part_B):
            inside = np.flatnonzero(part_B == part)
            rows = self._parts[part][row_B[inside]]
            for name, array in batch.items():
                values = rows[name]
                array[(inside, *(slice(size) for size in values.shape[1:]))] = values
        return batch

    def _places(self, example_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the part of each example and its row there, int64 [B]."""
        size = int(self._starts[-1])
        epoch_B, index_B = np.divmod(example_B, size)
        row_B = np.empty_like(index_B)
        for epoch in np.unique(epoch_B):
            inside = epoch_B == epoch
            key = random_key(self.spec.seed, self.spec.stage, int(epoch), 0, RECORD_ORDER_TAG)
            row_B[inside] = permuted(index_B[inside], size, key)
        part_B = np.searchsorted(self._starts, row_B, side="right") - 1
        return part_B, row_B - self._starts[part_B]
