"""The batches of an evaluation: one epoch of a split, the same in every call."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.base.batch import HostBatch, host_rows
from bert_jax.batches.rows.windows import WindowedRows
from bert_jax.batches.stream import Stream, StreamSpec, corruption_of

# No other seed affects the pairs and masks of an evaluation.
EVALUATION_SEED = 12345


def evaluation_batches(
    store,
    tokenizer,
    spec: StreamSpec,
    max_sequences: int = 0,
    *,
    multiple: int = 1,
    keeps_size: bool = False,
    shards: Sequence[int] = (0,),
    num_shards: int = 1,
) -> Iterator[HostBatch]:
    """Yields one epoch of a split, with the same rows and masks in every call.

    Masks are those that the corruption has for held-out rows (`corruption.held_out`), and each
    pair has a row of its own. If there are fewer sequences than `spec.batch_size`, they form one
    smaller batch, unless `keeps_size` is true.

    Args:
      store, tokenizer, shards, num_shards: As for `Stream`.
      spec: `seed` and `stage` determine rows and masks.
      max_sequences: The number of sequences to take from the start of the shuffled epoch; 0
        for all.
      multiple: A divisor of `spec.batch_size` that also divides the size of a smaller batch.
      keeps_size: Whether every batch has `spec.batch_size` rows, which fits a compiled step.

    Yields:
      Batches like those of `Stream`, with `example_weights` float32 [b]: 1, or 0 for rows that
      only fill up the last batch. In those rows all other float32 fields, which are weights,
      are 0 as well. If the corruption makes several copies of a row, they share the weight 1. All
      copies are in one batch, which may therefore have a few more rows than `spec.batch_size`.
    """
    corruption = corruption_of(spec.corruption)
    if hasattr(corruption, "held_out"):
        spec = corruption.held_out(spec)
    repeats = getattr(corruption_of(spec.corruption), "repeats", 1)
    size = -(-spec.batch_size // (repeats * multiple)) * multiple
    spec = dataclasses.replace(spec, max_pairs_per_row=1, batch_size=size)
    stream = Stream(store, tokenizer, spec, shards=shards, num_shards=num_shards)
    total = _num_sequences(stream.rows, max_sequences)
    rounded_up = -(-max(total, 1) // multiple) * multiple
    if rounded_up < spec.batch_size and not keeps_size:
        spec = dataclasses.replace(spec, batch_size=rounded_up)
        stream = Stream(store, tokenizer, spec, shards=shards, num_shards=num_shards)
    row_R = host_rows(spec.batch_size, shards, num_shards)
    # The rows beyond the total are the next rows of the stream, because rows of only padding
    # could give NaN.
    for number, batch in enumerate(stream.make_batches(0, -(-total // spec.batch_size))):
        is_counted = np.repeat(number * spec.batch_size + row_R < total, repeats)
        for name, field in stream.fields.items():
            if field.dtype == "float32":
                batch[name][~is_counted] = 0
        yield batch | {"example_weights": is_counted.astype(np.float32) / repeats}


def _num_sequences(rows: WindowedRows, max_sequences: int) -> int:
    """Returns the number of rows of the first epoch, at most `max_sequences` unless that is 0."""
    total = 0
    for window in range(len(rows.windows(0))):
        total += rows.count(0, window)
        if 0 < max_sequences <= total:
            return max_sequences
    return total
