"""The batches of fine-tuning, and what a model says of all rows of a split."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bert_jax.data.host_rows import HostRows
from bert_jax.data.pairs import random_key
from bert_jax.data.static_stream import permuted
from bert_jax.models.heads import NO_PROBABILITY
from bert_jax.parallel import hosts
from bert_jax.tasks.task import Rows
from bert_jax.training.trainer import Trainer


def examples_of_step(step: int, batch_size: int, num_rows: int, seed: int) -> np.ndarray:
    """Which rows make the batch of a step: a pure function of these four.

    Every epoch has all rows once, in a keyed order of its own; a batch may span two.

    Args:
      step: Counted from 0.

    Returns:
      int64 [batch_size], each below `num_rows`.
    """
    epoch_B, index_B = np.divmod(step * batch_size + np.arange(batch_size), num_rows)
    row_B = np.empty_like(index_B)
    for epoch in np.unique(epoch_B):
        here = epoch_B == epoch
        row_B[here] = permuted(index_B[here], num_rows, random_key(seed, int(epoch)))
    return row_B


def cut(batch: dict[str, np.ndarray], multiple: int) -> dict[str, np.ndarray]:
    """A batch without the columns in which all its sequences are padded.

    Args:
      batch: As `Rows.take` gives it.
      multiple: What is left is as long as the longest sequence, rounded up to a multiple of
        this; 0: all of it is left.
    """
    mask = batch["attention_mask"]
    if not multiple:
        return batch
    full = mask.shape[-1]
    longest = int(mask.sum(axis=-1).max())
    length = min(full, -(-longest // multiple) * multiple)
    return {
        name: array[..., :length] if array.ndim > 1 and array.shape[-1] == full else array
        for name, array in batch.items()
    }


def training_batches(
    rows: Rows,
    trainer: Trainer,
    *,
    batch_size: int,
    seed: int,
    first_step: int,
    end_step: int,
    length_multiple: int = 0,
) -> Iterator[dict]:
    """The batches of the steps from `first_step` on, on the devices; see `cut`."""
    here_R = HostRows(batch_size, **hosts.batch_shards(trainer.layout.batch)).row_R

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for step in range(first_step, end_step):
            # The whole batch on every host: all must cut it alike.
            batch = cut(
                rows.take(examples_of_step(step, batch_size, len(rows), seed)), length_multiple
            )
            yield {name: array[here_R] for name, array in batch.items()}

    return trainer.put(batches())


def predict(
    trainer: Trainer,
    params: Any,
    rows: Rows,
    batch_size: int,
    stop: Callable[[], bool] = lambda: False,
    length_multiple: int = 0,
) -> dict[str, np.ndarray] | None:
    """The model's outputs for all rows, in order.

    Args:
      trainer: Of a task's model.
      params: As the trainer shards them.
      rows: Any split's.
      batch_size: Rows at a time; rounded up to what divides over the devices.
      stop: Asked after every batch; True ends it.
      length_multiple: See `cut`; outputs of padding that was cut are NO_PROBABILITY.

    Returns:
      float32 arrays with a row each, as the model names them; None when stopped.
    """
    shards = hosts.batch_shards(trainer.layout.batch)
    size = -(-batch_size // shards["num_shards"]) * shards["num_shards"]
    here_R = HostRows(size, **shards).row_R

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for first in range(0, len(rows), size):
            # The last row again and again fills the last batch up.
            batch = rows.take(np.minimum(first + np.arange(size), len(rows) - 1))
            batch = cut(batch, length_multiple)
            yield {name: batch[name][here_R] for name in trainer.model.INPUTS}

    length = rows.take(np.arange(1))["input_ids"].shape[-1]
    outputs: dict[str, list[np.ndarray]] = {}
    for batch in trainer.put(batches()):
        was_cut = length - batch["input_ids"].shape[-1]
        for name, values in trainer.eval_step(params, batch).items():
            values = np.asarray(values)
            if was_cut and trainer.model.PER_TOKEN:
                padding = [(0, 0), (0, was_cut), *[(0, 0)] * (values.ndim - 2)]
                values = np.pad(values, padding, constant_values=NO_PROBABILITY)
            outputs.setdefault(name, []).append(values)
        if stop():
            return None
    return {name: np.concatenate(parts)[: len(rows)] for name, parts in outputs.items()}
