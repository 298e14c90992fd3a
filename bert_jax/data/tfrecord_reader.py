"""Reads and checks every record of google-research/bert's TFRecord files."""

import os
from collections.abc import Iterator

import numpy as np
from google.protobuf.message import DecodeError

from bert_jax import files
from bert_jax.data.lean_tensorflow import tf
from bert_jax.errors import UserError
from bert_jax.tokenizers import Tokenizer

# The features of a record: our name of the same array, and the kind of its values.
FEATURES = {
    "input_ids": ("input_ids", "int64_list"),
    "input_mask": ("attention_mask", "int64_list"),
    "segment_ids": ("token_type_ids", "int64_list"),
    "masked_lm_positions": ("masked_lm_positions", "int64_list"),
    "masked_lm_ids": ("masked_lm_ids", "int64_list"),
    "masked_lm_weights": ("masked_lm_weights", "float_list"),
    "next_sentence_labels": ("next_sentence_labels", "int64_list"),
}
_AS_LONG_AS = {
    "input_mask": "input_ids",
    "segment_ids": "input_ids",
    "masked_lm_positions": "masked_lm_ids",
    "masked_lm_weights": "masked_lm_ids",
}
# Records parsed at a time.
_BATCH = 1024
# A record's length, its checksum, and the checksum of its bytes.
_FRAME_BYTES = 16
# What a row keeps of a length or a position: two bytes.
MOST_TOKENS = 65535


def read_records(path: str, tokenizer: Tokenizer) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """Reads a file as checked columns, the records of one shape at a time.

    Args:
      path: The file. One in object storage is read from a scratch copy.
      tokenizer: The tokenizer of the records, for the limits of their ids.

    Yields:
      Arrays [n, ...] under our names, with `record`, int64 [n], their numbers from 1; and
      the number of bytes read since the last ones.

    Raises:
      UserError: A record cannot be used; the message names the file and the record.
    """
    with files.local_copy(path) as local:
        yield from _read_local(str(local), path, tokenizer)


def _read_local(
    local: str, path: str, tokenizer: Tokenizer
) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    read = num_bytes = 0
    for records in _batches(local, path):
        parsed = _parse(path, records, read)
        size = sum(len(record) + _FRAME_BYTES for record in records)
        lengths, slots = (np.diff(parsed[f][1]) for f in ("input_ids", "masked_lm_ids"))
        for length, slot in np.unique(np.stack([lengths, slots], axis=1), axis=0):
            chosen = np.flatnonzero((lengths == length) & (slots == slot))
            columns = {"record": read + 1 + chosen}
            for feature, (name, _) in FEATURES.items():
                values, starts = parsed[feature]
                width = np.arange(starts[chosen[0] + 1] - starts[chosen[0]])
                columns[name] = values[starts[chosen][:, None] + width]
            columns["next_sentence_labels"] = columns["next_sentence_labels"][:, 0]
            _check_values(path, columns, tokenizer)
            yield columns, size
            size = 0
        read += len(records)
        num_bytes += sum(len(record) + _FRAME_BYTES for record in records)
    if num_bytes != os.path.getsize(local):
        # TensorFlow takes a remainder that is shorter than a record's head for the end.
        raise UserError(f"{path}: record {read + 1} is cut off: the file is not whole")


def _batches(local: str, path: str) -> Iterator[np.ndarray]:
    """Yields the records of a file, bytes [n]; raises UserError at a damaged one."""
    records = tf.data.TFRecordDataset([local], buffer_size=2**20)
    try:
        for batch in records.batch(_BATCH):
            yield batch.numpy()
    except tf.errors.DataLossError:
        # In a batch, the error hides how many whole records precede it.
        number = 1
        try:
            for _ in records:
                number += 1
        except tf.errors.DataLossError as error:
            what = "is cut off" if "truncated" in error.message else "is damaged"
            hint = "the file is not whole" if number > 1 else "is this a TFRecord file, and whole?"
            raise UserError(f"{path}: record {number} {what}: {hint}") from None
        raise


def _parse(path: str, records: np.ndarray, before: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the values of each feature in all records, and where each record begins."""
    features = {
        name: tf.io.RaggedFeature(tf.int64 if kind == "int64_list" else tf.float32)
        for name, (_, kind) in FEATURES.items()
    }
    try:
        parsed = tf.io.parse_example(records, features)
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        # UnicodeDecodeError: TensorFlow's message quotes a record that is not text.
        parsed = None
    if parsed is not None:
        parsed = {
            name: (ragged.values.numpy(), ragged.row_splits.numpy().astype(np.int64))
            for name, ragged in parsed.items()
        }
        lengths = {name: np.diff(starts) for name, (_, starts) in parsed.items()}
        if (
            all((lengths[one] == lengths[other]).all() for one, other in _AS_LONG_AS.items())
            and (lengths["next_sentence_labels"] == 1).all()
            and min(lengths["input_ids"].min(), lengths["masked_lm_ids"].min()) > 0
            and lengths["input_ids"].max() <= MOST_TOKENS
        ):
            return parsed
    for number, record in enumerate(records, before + 1):
        if problem := _shape_problem(record):
            raise UserError(f"{path}: record {number} {problem}")
    raise UserError(f"{path}: records {before + 1} to {before + len(records)} cannot be parsed")


def _shape_problem(record: bytes) -> str:
    """Returns what is wrong with the features of a record; empty if nothing is."""
    try:
        features = tf.train.Example.FromString(record).features.feature
    except DecodeError:
        return "is not a tf.train.Example"
    lengths = {}
    for name, (_, kind) in FEATURES.items():
        if name not in features:
            known = ", ".join(sorted(features)) or "none"
            return f"has no feature {name}, as create_pretraining_data.py writes; it has: {known}"
        found = features[name].WhichOneof("kind")
        if found and found != kind:
            return f"has a feature {name} of kind {found}; it must be {kind}"
        lengths[name] = len(getattr(features[name], kind).value)
    for name in ("input_ids", "masked_lm_ids"):
        if not 1 <= lengths[name] <= MOST_TOKENS:
            return f"has {lengths[name]} {name}; it must be from 1 to {MOST_TOKENS}"
    for one, other in _AS_LONG_AS.items():
        if lengths[one] != lengths[other]:
            return f"has {lengths[one]} {one} but {lengths[other]} {other}"
    if lengths["next_sentence_labels"] != 1:
        return f"has {lengths['next_sentence_labels']} next_sentence_labels; it must have 1"
    return ""


def _check_values(path: str, columns: dict[str, np.ndarray], tokenizer: Tokenizer) -> None:
    """Refuses values out of range; a device would not notice an id beyond the embedding."""
    vocabulary = f"the entries of data.vocab are 0 to {tokenizer.vocab_size - 1}"
    limits = (
        ("input_ids", tokenizer.vocab_size, vocabulary),
        ("masked_lm_ids", tokenizer.vocab_size, vocabulary),
        ("attention_mask", 2, "it must be 0 or 1"),
        ("token_type_ids", 2, "it must be 0 or 1"),
        ("next_sentence_labels", 2, "it must be 0 or 1"),
        ("masked_lm_positions", columns["input_ids"].shape[1], "it must be within the sequence"),
        ("masked_lm_weights", np.inf, "it must be finite and not negative"),
    )
    written = {name: feature for feature, (name, _) in FEATURES.items()}
    for name, limit, rule in limits:
        values = columns[name]
        # NaN fails this test too.
        wrong = np.argwhere(~((values >= 0) & (values < limit)))
        if len(wrong):
            record, value = columns["record"][wrong[0][0]], values[tuple(wrong[0])]
            raise UserError(f"{path}: record {record} has {value} in {written[name]}; {rule}")
    first = columns["input_ids"][:, 0]
    if (wrong := np.flatnonzero(first != tokenizer.cls_id)).size:
        raise UserError(
            f"{path}: record {columns['record'][wrong[0]]} begins with the id {first[wrong[0]]}, "
            f"but [CLS] of data.vocab is {tokenizer.cls_id}: it was written with another vocabulary"
        )
