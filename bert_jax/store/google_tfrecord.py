"""Reads TFRecord files of google-research/bert's create_pretraining_data.py.

The files are converted to a `RecordStore` once, because a TFRecord file can only be read from the
start.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from bert_jax.base import files
from bert_jax.base.errors import UserError, with_filename
from bert_jax.base.lean_tensorflow import tf
from bert_jax.base.progress import Progress
from bert_jax.store.checked_files import write_checksums
from bert_jax.store.record_store import FIELDS, row_dtype, row_file
from bert_jax.tokenizers import Tokenizer

# Maps the features of a record to our names for the same arrays.
FEATURES = {
    "input_ids": "input_ids",
    "input_mask": "attention_mask",
    "segment_ids": "token_type_ids",
    "masked_lm_positions": "masked_lm_positions",
    "masked_lm_ids": "masked_lm_ids",
    "masked_lm_weights": "masked_lm_weights",
    "next_sentence_labels": "next_sentence_labels",
}
# The number of records that are parsed at a time.
_BATCH = 1024


def write_rows(sources: list[dict[str, Any]], tokenizer: Tokenizer, output: Path) -> int:
    """Writes the rows and token counts of a `RecordStore`.

    Args:
      sources: Dicts with the `path` of a TFRecord file. The number and shape of its records are
        added to each dict.
      output: A local directory.

    Returns:
      The number of rows.

    Raises:
      UserError: A record cannot be used; the message names the file and the record.
    """
    counts_V = np.zeros(tokenizer.vocab_size, np.int64)
    item_bytes = {"token_counts.npy": 1}
    with Progress("reading TFRecords", len(sources), "files") as progress:
        for number, source in enumerate(sources):
            source |= {"records": 0, "max_seq_length": 0, "max_predictions_per_seq": 0}
            path = output / row_file(number)
            with path.open("wb") as file:
                for columns in read_records(source["path"], tokenizer):
                    num_rows, length = columns["input_ids"].shape
                    predictions = columns["masked_lm_ids"].shape[1]
                    rows = np.empty(num_rows, row_dtype(length, predictions, len(counts_V)))
                    for name, values in columns.items():
                        rows[name] = values
                    item_bytes[path.name] = rows.itemsize
                    with with_filename(path):
                        file.write(rows.tobytes())
                    counts_V += _token_counts(columns, tokenizer)
                    source["records"] += num_rows
                    source["max_seq_length"] = length
                    source["max_predictions_per_seq"] = predictions
            progress.advance()
    np.save(output / "token_counts.npy", counts_V)
    write_checksums(output, item_bytes)
    total = sum(source["records"] for source in sources)
    if not total:
        raise UserError("the files of data.input have no records")
    return total


def read_records(path: str, tokenizer: Tokenizer) -> Iterator[dict[str, np.ndarray]]:
    """Yields the records of a file as checked arrays [n, ...] of FIELDS.

    Raises:
      UserError: A record cannot be used, or its lengths differ from those of the first.
    """
    with files.local_copy(path) as local:
        records = tf.data.TFRecordDataset(str(local), buffer_size=2**20).batch(_BATCH)
        read, wanted = 0, {}
        try:
            for batch in records.as_numpy_iterator():
                wanted = wanted or _features_like(batch[0])
                columns = _parsed(path, batch, wanted, read + 1)
                _check_values(path, columns, tokenizer, read + 1)
                yield columns
                read += len(batch)
        except tf.errors.DataLossError as error:
            raise UserError(
                f"{path} is damaged or not a TFRecord file: after record {read}, {error.message}"
            ) from None


def _lengths(record: bytes) -> dict[str, int]:
    """Returns the number of values of each feature; {} if the bytes are not an Example."""
    try:
        stored = tf.train.Example.FromString(record).features.feature
    except DecodeError:
        return {}
    lists = {name: (stored[name].int64_list, stored[name].float_list) for name in stored}
    return {name: sum(len(part.value) for part in parts) for name, parts in lists.items()}


def _features_like(record: bytes) -> dict[str, Any]:
    """Returns features for `tf.io.parse_example`, with the lengths of this record."""
    lengths = _lengths(record)
    length, predictions = (max(1, lengths.get(n, 1)) for n in ("input_ids", "masked_lm_ids"))
    return {
        feature: tf.io.FixedLenFeature(
            FIELDS[name].shape(1, length, predictions)[1:] or [1],
            tf.float32 if is_float(name) else tf.int64,
        )
        for feature, name in FEATURES.items()
    }


def is_float(name: str) -> bool:
    """Returns whether a record stores a field of the batch as floats."""
    return FIELDS[name].dtype == "float32"


def _parsed(
    path: str, records: np.ndarray, wanted: dict[str, Any], first: int
) -> dict[str, np.ndarray]:
    """Parses records into arrays; the first record has the number `first`, for messages."""
    try:
        parsed = tf.io.parse_example(records, wanted)
    # UnicodeDecodeError: TensorFlow's message quotes a record whose bytes are not UTF-8.
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        for number, record in enumerate(records, first):
            lengths = _lengths(record)
            for name, feature in wanted.items():
                if lengths.get(name) != feature.shape[0]:
                    raise UserError(
                        f"{path}: record {number} has {lengths.get(name, 'no')} values of {name}; "
                        f"all records of this file must be tf.train.Examples with "
                        f"{feature.shape[0]} values"
                    ) from None
        raise UserError(
            f"{path}: masked_lm_weights must be floats and all other features integers, as "
            f"create_pretraining_data.py writes them; see record {first} and those after it"
        ) from None
    columns = {name: parsed[feature].numpy() for feature, name in FEATURES.items()}
    columns["next_sentence_labels"] = columns["next_sentence_labels"][:, 0]
    return columns


def _check_values(
    path: str, columns: dict[str, np.ndarray], tokenizer: Tokenizer, first: int
) -> None:
    """Refuses values out of range; a device raises no error for an id beyond the embedding."""
    sizes = tokenizer.vocab_size, columns["input_ids"].shape[1]
    for feature, name in FEATURES.items():
        field, values = FIELDS[name], columns[name]
        limit = np.inf if is_float(name) else field.limit(*sizes)
        # NaN fails this test too.
        wrong = np.argwhere(~((values >= 0) & (values < limit)))
        if len(wrong):
            rule = f" and below {limit}" + " (the tokens of data.vocab)" * (field.high == "V")
            raise UserError(
                f"{path}: record {first + wrong[0][0]} has {values[tuple(wrong[0])]} in {feature}; "
                f"it must be at least 0{rule}"
            )
    begins = columns["input_ids"][:, 0]
    if (wrong := np.flatnonzero(begins != tokenizer.cls_id)).size:
        raise UserError(
            f"{path}: record {first + wrong[0]} begins with the id {begins[wrong[0]]}, but [CLS] "
            f"of data.vocab is {tokenizer.cls_id}: it was written with another vocabulary"
        )


def _token_counts(columns: dict[str, np.ndarray], tokenizer: Tokenizer) -> np.ndarray:
    """Counts the tokens of the unmasked text without special tokens; int64 [V]."""
    text = columns["input_ids"].copy()
    row, slot = np.nonzero(columns["masked_lm_weights"])
    text[row, columns["masked_lm_positions"][row, slot]] = columns["masked_lm_ids"][row, slot]
    text = text[columns["attention_mask"] != 0]
    text = text[~np.isin(text, (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id))]
    return np.bincount(text, minlength=tokenizer.vocab_size)
