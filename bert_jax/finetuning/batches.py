"""The batches of fine-tuning, and a model's outputs for all rows of a split."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.base.batch import host_rows
from bert_jax.batches.random_keys import permuted, random_key
from bert_jax.models.heads import NO_PROBABILITY
from bert_jax.parallel import multihost
from bert_jax.tasks.mixed_rows import MixedRows
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.tasks.vectors import joined
from bert_jax.training.loop import DivergedError
from bert_jax.training.trainer import Trainer


def rows_of_step(step: int, num_rows: int, batch_size: int, seed: int) -> np.ndarray:
    """Returns the row numbers of a step counted from 0, int64 [batch_size].

    Every epoch has each row once, in its own keyed order. A batch may span two epochs.
    """
    position_N = np.arange(step * batch_size, (step + 1) * batch_size)
    epoch_N, index_N = np.divmod(position_N, num_rows)
    row_N = np.empty_like(index_N)
    for epoch in np.unique(epoch_N):
        inside_N = epoch_N == epoch
        key = random_key(seed, int(epoch))
        row_N[inside_N] = permuted(index_N[inside_N], num_rows, key)
    return row_N


def numbers_of_step(rows: TokenRows, step: int, batch_size: int, seed: int) -> np.ndarray:
    """Returns the row numbers of a step, which for `MixedRows` are all of one data set.

    The sets take turns in a keyed order. Each goes on with its own rows where it was, which depends
    only on the step.
    """
    if not isinstance(rows, MixedRows):
        return rows_of_step(step, len(rows), batch_size, seed)
    number_S = rows.num_batches(batch_size)
    first_S = np.cumsum(number_S) - number_S
    turn, index = divmod(step, int(number_S.sum()))
    (place,) = permuted(np.array([index]), int(number_S.sum()), random_key(seed, turn, 1))
    chosen = int(np.searchsorted(first_S, place, side="right")) - 1
    own_step = turn * int(number_S[chosen]) + int(place - first_S[chosen])
    start, stop = rows.starts[chosen : chosen + 2]
    return start + rows_of_step(own_step, int(stop - start), batch_size, seed)


def cut(
    batch: dict[str, np.ndarray], per_token: Sequence[str], multiple: int
) -> dict[str, np.ndarray]:
    """Removes columns in which all sequences of a batch are padded.

    Args:
      per_token: The arrays whose last axis is that of `attention_mask`; see `TokenRows`.
      multiple: The batch is cut to the length of its longest sequence, rounded up to a multiple of
        this; 0 cuts nothing. Two lengths that vary independently would compile a program for each
        pair of multiples, so those of embeddings are halves, quarters and so on of the full length
        instead, and at least `multiple`.
    """
    if not multiple:
        return batch

    def length_of(mask: np.ndarray) -> int:
        longest, length = int((mask > 0).sum(axis=-1).max()), mask.shape[-1]
        if "document_mask" not in batch:
            return min(length, -(-longest // multiple) * multiple)
        while -(-length // 2) >= max(longest, multiple):
            length = -(-length // 2)
        return length

    length = length_of(batch["attention_mask"])
    short = batch | {name: batch[name][..., :length] for name in per_token if name in batch}
    if "document_mask" in batch:
        # Documents have a length of their own, so that questions are not padded to theirs.
        length = length_of(batch["document_mask"])
        short |= {name: batch[name][..., :length] for name in ("document_ids", "document_mask")}
    return short


def training_batches(
    rows: TokenRows, trainer: Trainer, steps: range, batch_size: int, length_multiple: int = 0
) -> Iterator[dict]:
    """Yields the batches of some steps, which count from 0, on the devices; see `cut`."""
    row_R = host_rows(batch_size, **multihost.batch_shards(trainer.layout.batch))

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for step in steps:
            # Every host reads the global batch, because all hosts must cut it to one length.
            numbers = numbers_of_step(rows, step, batch_size, trainer.seed)
            batch = rows.draw(numbers, trainer.seed, step)
            batch = cut(batch, rows.PER_TOKEN, length_multiple)
            yield {name: array[row_R] for name, array in batch.items()}

    return trainer.put(batches())


def predict(
    trainer: Trainer,
    params: Any,
    rows: TokenRows,
    batch_size: int,
    stop: Callable[[], bool] = lambda: False,
    length_multiple: int = 0,
) -> dict[str, np.ndarray] | None:
    """Computes the model's outputs for all rows, in order.

    Args:
      batch_size: The rows of a batch; rounded up to a multiple of the data shards.
      stop: Called after every batch; True ends the prediction without results.
      length_multiple: See `cut`; outputs for padding that was cut are NO_PROBABILITY.

    Returns:
      The model's outputs by name, float32, with one row for each example, or as `compact` of the
      rows gives them; None if stopped.
    """
    shards = multihost.batch_shards(trainer.layout.batch)
    size = -(-min(batch_size, len(rows)) // shards["num_shards"]) * shards["num_shards"]
    row_R = host_rows(size, **shards)

    # The rows of each batch.
    ranges = [
        part[first : first + size] for part in rows.parts for first in range(0, len(part), size)
    ]

    def batches() -> Iterator[dict[str, np.ndarray]]:
        names = *trainer.model.INPUTS, "is_query"
        for numbers in ranges:
            # Copies of the last row fill up the last batch.
            batch = rows.take(np.minimum(numbers.start + np.arange(size), numbers[-1]))
            batch = cut(batch, rows.PER_TOKEN, length_multiple)
            yield {name: batch[name][row_R] for name in names if name in batch}

    length = rows.take(np.arange(1))["input_ids"].shape[-1]
    outputs: dict[str, list[Any]] = {}
    for numbers, batch in zip(ranges, trainer.put(batches()), strict=True):
        was_cut = length - batch["input_ids"].shape[-1]
        found = {}
        for name, values in trainer.eval_step(params, batch).items():
            values = np.asarray(values)[: len(numbers)]
            if not np.isfinite(values).all():
                raise DivergedError(
                    f"the model's {name} are not finite: its weights are damaged, or the learning "
                    "rate or config.optimizer.weight_decay was too high"
                )
            if was_cut and trainer.model.PER_TOKEN:
                padding = [(0, 0), (0, was_cut), *[(0, 0)] * (values.ndim - 2)]
                values = np.pad(values, padding, constant_values=NO_PROBABILITY)
            found[name] = values
        for name, values in rows.compact(found, trainer.model_config.vocab_size).items():
            outputs.setdefault(name, []).append(values)
        if stop():
            return None
    return rows.of_examples({name: joined(parts) for name, parts in outputs.items()})
