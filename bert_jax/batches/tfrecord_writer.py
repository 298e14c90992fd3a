"""Writes a token store as TFRecord files like those of google-research/bert's own program."""

import contextlib
import os
from pathlib import Path

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.lean_tensorflow import tf
from bert_jax.base.progress import Progress
from bert_jax.batches.stream import Stream, StreamSpec
from bert_jax.store.google_tfrecord import FEATURES, is_float
from bert_jax.store.manifest import empty_directory
from bert_jax.tokenizers import Tokenizer
from bert_jax.tokenizers.sentencepiece import MODEL_FILE


def write_tfrecords(
    store,
    tokenizer: Tokenizer,
    spec: StreamSpec,
    output: Path | epath.Path,
    *,
    dupe_factor: int = 10,
    num_shards: int = 1,
) -> int:
    """Writes epochs of a token store as TFRecord files, and their vocabulary beside them.

    The files get their final names when all are complete. The vocabulary is written last.

    Args:
      store, tokenizer: As for `Stream`.
      spec: Determines pairs and masks; its batch size has no effect.
      output: A directory that is new or empty, or holds the remains of a killed export.
      dupe_factor: The number of epochs, each with its own pairs and masks.
      num_shards: The number of files, which take the records in turn.

    Returns:
      The number of records.

    Raises:
      UserError: The directory holds other files or cannot be written (a full disk).
    """
    stream = Stream(store, tokenizer, spec)
    rows = stream.examples.rows
    total = sum(rows.count(e, w) for e in range(dupe_factor) for w in range(len(rows.windows(e))))
    with (
        empty_directory(output, r"examples-\d+-of-\d+\.tfrecord\.partial"),
        files.local_output(output, last=("vocab.txt", MODEL_FILE)) as folder,
        Progress("writing", total, "records") as progress,
    ):
        names = (f"examples-{i:05d}-of-{num_shards:05d}.tfrecord" for i in range(num_shards))
        paths = [folder / name for name in names]
        written = 0
        try:
            with contextlib.ExitStack() as stack:
                partial = (tf.io.TFRecordWriter(f"{path}.partial") for path in paths)
                writers = [stack.enter_context(writer) for writer in partial]
                for batch in stream.batches(0, -(-total // spec.batch_size)):
                    records = _serialized(batch)[: total - written]
                    for number, record in enumerate(records, written):
                        writers[number % num_shards].write(record)
                    written += len(records)
                    progress.advance(len(records))
        except tf.errors.OpError as error:
            raise UserError(f"{output} cannot be written: {error.message}") from error
        for path in paths:
            os.replace(f"{path}.partial", path)
        tokenizer.save(folder)
    return total


def _serialized(batch: dict[str, np.ndarray]) -> list[bytes]:
    """Returns the rows of a batch as tf.train.Examples."""
    num_rows = len(batch["input_ids"])
    columns = {
        feature: batch[name].reshape(num_rows, -1).tolist() for feature, name in FEATURES.items()
    }
    records = []
    for row in range(num_rows):
        example = tf.train.Example()
        for feature, values in columns.items():
            stored = example.features.feature[feature]
            column = stored.float_list if is_float(FEATURES[feature]) else stored.int64_list
            column.value.extend(values[row])
        records.append(example.SerializeToString(deterministic=True))
    return records
