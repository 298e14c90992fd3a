"""Stores the rows of google-research/bert's TFRecord files for reading in any order.

DIR/metadata.json       as in a token store; `sources` has the number and shape of the records
DIR/tokenizer/          the tokenizer, self-contained
DIR/rows-00000.bin ...  the rows of each source, see `row_dtype`
DIR/token_counts.npy    int64 [V]: how often each token occurs, unmasked
DIR/checksums.npz       of the two kinds of files above
"""

import os
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.base import files
from bert_jax.base.batch import ENCODER_FIELDS, MASKED_LM_FIELDS, NEXT_SENTENCE_FIELDS, BatchFields
from bert_jax.base.errors import UserError
from bert_jax.store.checked_files import CheckedVector, open_index, read_checksums
from bert_jax.store.token_store import read_metadata, store_path

# The value of config.data.format for TFRecord files.
FORMAT = "google_tfrecord"
FIELDS: BatchFields = {**ENCODER_FIELDS, **MASKED_LM_FIELDS, **NEXT_SENTENCE_FIELDS}


def row_dtype(max_seq_length: int, max_predictions: int, vocab_size: int) -> np.dtype:
    """Returns the dtype of a row: the arrays of FIELDS, in the smallest types that hold them."""
    columns = []
    for name, field in FIELDS.items():
        smallest = np.min_scalar_type(field.limit(vocab_size, max_seq_length) - 1)
        dtype = np.dtype(np.float32) if field.dtype == "float32" else smallest
        shape = field.shape(1, max_seq_length, max_predictions)
        columns.append((name, dtype.newbyteorder("<"), shape[1:]))
    return np.dtype(columns)


def row_file(source: int) -> str:
    return f"rows-{source:05d}.bin"


class RecordStore:
    """The rows of all sources, memory-mapped.

    Attributes:
      directory: The directory of the store.
      num_rows: The number of rows over all sequence lengths.
      token_counts: int64 [V].
      has_words: False; see `TokenStore`.

    Raises:
      UserError: Rows are missing.
    """

    has_words = False

    def __init__(self, directory: str | os.PathLike):
        self.directory = store_path(directory)
        sources = read_metadata(self.directory)["sources"]
        # Each source with its rows.
        self._files: list[tuple[dict[str, Any], CheckedVector]] = []
        with files.local_copy(self.directory) as local:
            checksums = read_checksums(self.directory, local)
            self.token_counts = open_index(self.directory, local, "token_counts.npy", checksums)
            for number, source in enumerate(sources):
                if source["records"]:
                    shape = source["max_seq_length"], source["max_predictions_per_seq"]
                    dtype = row_dtype(*shape, len(self.token_counts))
                    path = self.directory / row_file(number)
                    rows = CheckedVector(
                        local / path.name, dtype, source["records"], path, checksums
                    )
                    self._files.append((source, rows))
        self.num_rows = sum(len(rows) for _, rows in self._files)

    def select(
        self, max_seq_length: int, max_predictions: int
    ) -> list[tuple[dict[str, Any], CheckedVector]]:
        """Returns the sources whose records have `max_seq_length` tokens, each with its rows.

        Raises:
          UserError: No source has this length, or one has more than `max_predictions` predictions.
        """
        found = [file for file in self._files if file[0]["max_seq_length"] == max_seq_length]
        if not found:
            lengths = sorted({source["max_seq_length"] for source, _ in self._files})
            raise UserError(
                f"no record of config.data.input has {max_seq_length} tokens, the max_seq_length "
                f"of a stage in config.train.stages; the records have "
                f"{' or '.join(map(str, lengths))}: add files of that length, or set the stage's "
                "max_seq_length to theirs or its fraction to 0"
            )
        most = max(source["max_predictions_per_seq"] for source, _ in found)
        if most > max_predictions:
            raise UserError(
                f"the records of {max_seq_length} tokens in config.data.input have {most} "
                f"predictions, but the stage's max_predictions_per_seq is {max_predictions}; set "
                f"it to {most} in config.train.stages"
            )
        return sorted(found, key=lambda file: file[0]["max_predictions_per_seq"])


def training_flags(values: Mapping[str, Any], shapes: set[tuple[int, int]]) -> str:
    """Returns the flags of `bert_jax.main` for training on records.

    Args:
      values: Config keys and their values.
      shapes: The (length, number of predictions) of the records.
    """
    values = {"data.format": FORMAT, **values}
    if len(shapes) == 1:
        # Rows of one length need one stage, but the default config has two.
        ((length, predictions),) = shapes
        values |= {
            "train.stages[0].fraction": 1.0,
            "train.stages[0].max_seq_length": length,
            "train.stages[0].max_predictions_per_seq": predictions,
            "train.stages[1].fraction": 0.0,
        }
    return " ".join(shlex.quote(f"--config.{key}={value}") for key, value in values.items())
