"""The batches of static rows: any of them by arithmetic.

A stage's stream is the rows of its length, each epoch in an order of its own: a keyed
permutation that is computed, not stored. Nothing here knows of TensorFlow.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bert_jax.data.batch_shards import HostRows
from bert_jax.data.examples import PipelineSpec
from bert_jax.data.pairs import TAG_ROWS, random_key
from bert_jax.data.static_rows import StaticRows
from bert_jax.errors import UserError

# Half of them would mix a million rows well; a few rows need more.
_ROUNDS = 8


class StaticStream:
    """A stage's batches of static rows, as one host sees them: `PretrainingStream`'s interface.

    Example n of the stage is row `n % N` of epoch `n // N`'s own order of the N rows.

    Args:
      rows: All rows; the stage takes those of its length.
      spec: See PipelineSpec; what concerns pairs and masks has no effect.
      shards, num_shards: Each global batch is cut into `num_shards` equal parts, and
        this host has those with the numbers `shards`, ascending.

    Raises:
      UserError: the batch does not divide, or as `StaticRows.select`.
    """

    def __init__(
        self,
        rows: StaticRows,
        spec: PipelineSpec,
        *,
        shards: Sequence[int] = (0,),
        num_shards: int = 1,
    ):
        self._row_R = HostRows(spec.batch_size, shards, num_shards).row_R
        self.spec = spec
        self._sources = rows.sources
        self._parts = rows.select(spec.max_seq_length, spec.max_predictions_per_seq)
        self._starts = np.cumsum([0, *map(len, self._parts)])

    def position(self, step: int) -> dict[str, int]:
        """Where the first example of `step` lies, and of how many rows; JSON-able."""
        first = step * self.spec.batch_size
        rows = int(self._starts[-1])
        return {"epoch": first // rows, "first_example": first, "rows": rows}

    def batches(
        self, first_step: int, num_steps: int, position: dict | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """This host's rows of steps `first_step` to `first_step + num_steps`.

        Args:
          first_step: A step of this stage, from 0.
          num_steps: How many.
          position: What `position(first_step)`, or of an earlier step, gave: is compared.

        Yields:
          What `PretrainingStream.batches` does.

        Raises:
          UserError: `position` is none of this stream's.
        """
        if position is not None:
            step, odd = divmod(position.get("first_example", -1), self.spec.batch_size)
            if odd or not 0 <= step <= first_step or position != self.position(step):
                raise UserError(
                    f"the input position {position} is none of this run's at step {first_step}: "
                    "the checkpoint belongs to other data, another batch size or stage"
                )
        return self._ahead(first_step, num_steps)

    def describe_batch(self, step: int) -> dict[str, Any]:
        """The identity of a global batch, JSON-able: `rows` holds [file, record from 1]."""
        size = self.spec.batch_size
        first = step * size
        rows = self._columns(np.arange(first, first + size), ("source", "record"))
        places = zip(rows["source"].tolist(), rows["record"].tolist(), strict=True)
        return {
            "stage": self.spec.stage,
            "step": step,
            "first_example": first,
            "last_example": first + size - 1,
            "epoch": self.position(step)["epoch"],
            "rows": [[self._sources[source], record] for source, record in places],
        }

    def _ahead(self, first_step: int, num_steps: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches in order, a few made beforehand by threads."""
        waiting: deque = deque()
        pool = ThreadPoolExecutor(max(1, self.spec.num_threads), thread_name_prefix="rows")
        try:
            for step in range(first_step, first_step + num_steps):
                waiting.append(pool.submit(self._batch, step))
                if len(waiting) > max(1, self.spec.prefetch_batches):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _batch(self, step: int) -> dict[str, np.ndarray]:
        dtype = self._parts[0].dtype
        names = [name for name in dtype.names if name not in ("source", "record")]
        return self._columns(step * self.spec.batch_size + self._row_R, names)

    def _columns(self, example_B: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Columns of examples, as a batch has them; short ones padded with 0."""
        row_B = self._rows_of(example_B)
        part_B = np.searchsorted(self._starts, row_B, side="right") - 1
        slots = self.spec.max_predictions_per_seq
        columns: dict[str, np.ndarray] = {}
        for part in np.unique(part_B):
            inside = part_B == part
            rows = self._parts[part][row_B[inside] - self._starts[part]]
            for name in names:
                values = rows[name]
                dtype = np.float32 if name == "masked_lm_weights" else np.int32
                width = (slots,) if name.startswith("masked_lm") else values.shape[1:]
                column = columns.setdefault(name, np.zeros((len(example_B), *width), dtype))
                column[(inside, *(slice(size) for size in values.shape[1:]))] = values
        return columns

    def _rows_of(self, example_B: np.ndarray) -> np.ndarray:
        """The row, int64 [B], that each example is."""
        size = int(self._starts[-1])
        epoch_B, index_B = np.divmod(example_B, size)
        row_B = np.empty_like(index_B)
        for epoch in np.unique(epoch_B):
            here = epoch_B == epoch
            key = random_key(self.spec.seed, self.spec.stage, int(epoch), 0, TAG_ROWS)
            row_B[here] = permuted(index_B[here], size, key)
        return row_B


def permuted(index_N: np.ndarray, size: int, key: np.ndarray) -> np.ndarray:
    """Where a keyed permutation of `size` entries sends each index, in constant memory.

    A Feistel network over the next even number of bits; what it sends beyond `size` goes
    through it again, which keeps it a permutation of those below.

    Args:
      index_N: int64, each below `size`.
      key: uint64 [2].

    Returns:
      int64 [N].
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    round_keys = np.random.Philox(key=key).random_raw(_ROUNDS)
    place_N = index_N.astype(np.uint64)
    outside = np.arange(len(place_N))
    while outside.size:
        left, right = place_N[outside] >> half, place_N[outside] & mask
        for round_key in round_keys:
            left, right = right, left ^ (_mixed(right + round_key) & mask)
        place_N[outside] = left << half | right
        outside = outside[place_N[outside] >= size]
    return place_N.astype(np.int64)


def _mixed(bits_N: np.ndarray) -> np.ndarray:
    """uint64 whose every bit depends on every bit of the argument (splitmix64's last step)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits_N = (bits_N ^ bits_N >> np.uint64(shift)) * np.uint64(factor)
    return bits_N ^ bits_N >> np.uint64(31)
