"""Writes the rows of a token store as TFRecord files of google-research/bert."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from etils import epath

from bert_jax import files, tokenizers
from bert_jax.data.examples import Window
from bert_jax.data.lean_tensorflow import tf
from bert_jax.data.store_directory import empty_directory
from bert_jax.data.stream import StreamSpec, TokenStream
from bert_jax.data.tfrecord_reader import FEATURES
from bert_jax.errors import UserError
from bert_jax.progress import Progress
from bert_jax.tokenizers.sentencepiece import MODEL_FILE

# Records made at a time; fewer if they are longer than 512 tokens.
_BATCH = 1024
_PARTIAL = re.compile(r"examples-\d+-of-\d+\.tfrecord\.partial")


def write_tfrecords(
    store,
    tokenizer: tokenizers.Tokenizer,
    spec: StreamSpec,
    output: Path | epath.Path,
    *,
    dupe_factor: int = 10,
    num_shards: int = 1,
    show_progress: bool = True,
) -> int:
    """Writes epochs of a token store as TFRecord files, and their vocabulary beside them.

    The files get their names when all of them are whole, and the vocabulary is written last.

    Args:
      store, tokenizer: As for `TokenStream`.
      spec: Determines pairs and masks. The stream is written in its order, one record to each
        file in turn. `batch_size` has no effect.
      output: A directory that is new or empty, or holds what a killed export left.
      dupe_factor: The number of epochs, each with its own pairs and masks.
      num_shards: The number of files.

    Returns:
      The number of records.

    Raises:
      UserError: The directory holds other files or cannot be written (a full disk).
    """
    is_new = not output.exists()
    stream = TokenStream(store, tokenizer, spec)
    rows = stream.examples.rows
    total = sum(rows.count(e, w) for e in range(dupe_factor) for w in range(len(rows.windows(e))))
    size = max(1, min(_BATCH, _BATCH * 512 // spec.max_seq_length))
    with (
        empty_directory(output, _PARTIAL),
        _cleared_on_error(output, is_new),
        files.local_output(output, last=("vocab.txt", MODEL_FILE)) as folder,
        Progress("writing", total, "records", enabled=show_progress) as progress,
    ):
        names = (f"examples-{i:05d}-of-{num_shards:05d}.tfrecord" for i in range(num_shards))
        paths = [folder / name for name in names]
        with contextlib.ExitStack() as stack:
            writers = [tf.io.TFRecordWriter(f"{path}.partial") for path in paths]
            for writer in writers:
                stack.enter_context(contextlib.closing(writer))
            spans = stream.examples.spans(Window(0, 0, 0), 0, size, size, -(-total // size))
            for first, plan in spans:
                records = _serialized(stream.build(plan, first), min(size, total - first))
                for number, record in enumerate(records, first):
                    writers[number % num_shards].write(record)
                progress.advance(len(records))
        for path in paths:
            os.replace(f"{path}.partial", path)
        tokenizer.save(folder)
    return total


@contextlib.contextmanager
def _cleared_on_error(output: Path | epath.Path, is_new: bool) -> Iterator[None]:
    """Empties a directory again if the block fails; UserError if it could not be written."""
    try:
        yield
    except BaseException as error:
        if not files.is_remote(output):
            for path in output.iterdir():
                path.unlink()
            if is_new:
                output.rmdir()
        if isinstance(error, OSError | tf.errors.OpError):
            # TensorFlow's message is "PATH; REASON".
            message = error.strerror if isinstance(error, OSError) else error.message
            reason = str(message or error).rpartition("; ")[2]
            raise UserError(
                f"{output} cannot be written: {reason}; nothing is left of the attempt"
            ) from error
        raise


def _serialized(batch: dict[str, np.ndarray], count: int) -> list[bytes]:
    """Returns the first `count` rows of a batch as tf.train.Examples."""
    columns = {
        feature: (kind, batch[name][:count].reshape(count, -1).tolist())
        for feature, (name, kind) in FEATURES.items()
    }
    records = []
    for row in range(count):
        example = tf.train.Example()
        for feature, (kind, values) in columns.items():
            getattr(example.features.feature[feature], kind).value.extend(values[row])
        records.append(example.SerializeToString())
    return records
