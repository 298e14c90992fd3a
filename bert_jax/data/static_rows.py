"""Training examples on disk with fixed pairs and masks, which are read in any order.

    DIR/rows.json                written last: its presence means that the rows are complete
    DIR/tokenizer/               the tokenizer, self-contained
    DIR/rows-00128-0020.bin ...  rows of 128 tokens and 20 predictions, see `row_dtype`
    DIR/token_counts.npy         int64 [V]: how often each token occurs, unmasked

Neither writing nor reading holds more than a small part of them in memory.
"""

import io
import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.batch import (
    ENCODER_FIELDS,
    MASKED_LM_FIELDS,
    NEXT_SENTENCE_FIELDS,
    BatchFields,
)
from bert_jax.data.store import OutputFile, open_vector, store_path, token_dtype
from bert_jax.errors import UserError

# The config.data.format of files that are converted to rows.
FORMAT = "google_tfrecord"
FORMAT_VERSION = 1
METADATA = "rows.json"
TOKEN_COUNTS = "token_counts.npy"
# The files that an interrupted conversion may have left.
ROW_FILES = re.compile(
    r"rows-\d+-\d+\.bin|token_counts\.npy|rows\.json\.partial"
    r"|tokenizer/(tokenizer\.json|vocab\.txt|sentencepiece\.model)"
)
_AGAIN = "convert the files again in an empty directory"
# The names of a row's shape in rows.json.
_SHAPE = ("max_seq_length", "max_predictions_per_seq")


# The arrays of a row, in the order in which they are stored.
FIELDS: BatchFields = {**ENCODER_FIELDS, **MASKED_LM_FIELDS, **NEXT_SENTENCE_FIELDS}


def row_dtype(max_seq_length: int, max_predictions: int, vocab_size: int) -> np.dtype:
    """Returns the dtype of a row: its arrays, and the numbers of its source and record."""
    stored: dict[int | str, Any] = {"V": token_dtype(vocab_size), "L": "<u2", 2: "u1"}
    columns: list[tuple[Any, ...]] = []
    for name, field in FIELDS.items():
        dtype = "<f4" if field.dtype == "float32" else stored[field.high]
        shape = field.shape(
            batch_size=1, max_seq_length=max_seq_length, max_predictions_per_seq=max_predictions
        )
        columns.append((name, dtype, shape[1:]))
    return np.dtype([*columns, ("source", "<u4"), ("record", "<u4")])


class RowsWriter:
    """Writes rows in bounded memory. They are complete once `write_metadata` returns.

    Args:
      directory: Must hold no rows yet.
      tokenizer: The tokenizer of the rows, which is written beside them.
    """

    def __init__(self, directory: Path | epath.Path, tokenizer):
        self._directory = directory
        tokenizer.save(directory / "tokenizer")
        self._tokenizer = tokenizer
        self._counts = np.zeros(tokenizer.vocab_size, np.int64)
        self._files: dict[tuple[int, int], OutputFile] = {}
        self._rows: dict[tuple[int, int], int] = {}

    @property
    def num_rows(self) -> int:
        return sum(self._rows.values())

    def append(self, columns: dict[str, np.ndarray]) -> None:
        """Adds rows of one shape: arrays named as the fields of `row_dtype`, values checked."""
        shape = columns["input_ids"].shape[1], columns["masked_lm_ids"].shape[1]
        rows = np.empty(len(columns["input_ids"]), row_dtype(*shape, len(self._counts)))
        for name, values in columns.items():
            rows[name] = values
        if shape not in self._files:
            self._files[shape] = OutputFile(self._directory / _file_name(*shape))
            self._rows[shape] = 0
        self._files[shape].write(rows.tobytes())
        self._rows[shape] += len(rows)
        self._count(columns)

    def write_metadata(self, metadata: dict[str, Any]) -> None:
        """Closes the rows and marks them as complete."""
        for file in self._files.values():
            file.finish()
        counts = io.BytesIO()
        np.save(counts, self._counts, allow_pickle=False)
        files.write_whole(self._directory / TOKEN_COUNTS, counts.getvalue())
        rows = [
            {**dict(zip(_SHAPE, shape, strict=True)), "rows": count}
            for shape, count in sorted(self._rows.items())
        ]
        values = {"format_version": FORMAT_VERSION, **metadata, "rows": rows}
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        files.write_whole(self._directory / METADATA, text.encode())

    def __enter__(self) -> "RowsWriter":
        return self

    def __exit__(self, *_) -> None:
        for file in self._files.values():
            file.close()

    def _count(self, columns: dict[str, np.ndarray]) -> None:
        """Counts the text as it was before it was masked, without special tokens."""
        text = columns["input_ids"].copy()
        row, slot = np.nonzero(columns["masked_lm_weights"])
        text[row, columns["masked_lm_positions"][row, slot]] = columns["masked_lm_ids"][row, slot]
        text = text[columns["attention_mask"] != 0]
        specials = (self._tokenizer.pad_id, self._tokenizer.cls_id, self._tokenizer.sep_id)
        text = text[~np.isin(text, specials)]
        self._counts += np.bincount(text, minlength=len(self._counts))


def read_metadata(directory: str | os.PathLike) -> dict[str, Any]:
    """Returns the contents of a finished `rows.json`.

    Raises:
      UserError: The file does not exist, is damaged or of another version.
    """
    path = store_path(directory) / METADATA
    try:
        metadata = json.loads(path.read_bytes())
        version = metadata["format_version"]
    except FileNotFoundError:
        raise UserError(
            f"{directory} holds no finished rows of TFRecord files ({METADATA} is missing); with "
            f"config.data.format={FORMAT}, config.data.store must be what `python -m "
            f"bert_jax.prepare --format={FORMAT}` wrote"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is damaged: {_AGAIN}") from None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path} is of format version {version}, this program reads version "
            f"{FORMAT_VERSION}: {_AGAIN}"
        )
    if not _is_whole(metadata):
        raise UserError(f"{path} is damaged: {_AGAIN}")
    return metadata


def _is_whole(metadata: dict[str, Any]) -> bool:
    """Returns whether the metadata have every key that this program reads."""
    try:
        return (
            {"tokenizer", "lowercase", "vocab_size", "input"} <= metadata["options"].keys()
            and all({"path", "bytes", "records"} <= s.keys() for s in metadata["sources"])
            and all(
                isinstance(r[name], int) for r in metadata["rows"] for name in (*_SHAPE, "rows")
            )
        )
    except (KeyError, TypeError, AttributeError):
        return False


class StaticRows:
    """All rows of a directory, memory-mapped; remote ones are copied to TMPDIR first.

    Attributes:
      directory: The directory.
      num_rows: The number of rows of all shapes.
      token_counts: int64 [V].

    Raises:
      UserError: The rows are not complete.
    """

    def __init__(self, directory: str | os.PathLike):
        self.directory = store_path(directory)
        metadata = read_metadata(self.directory)
        self.sources = [source["path"] for source in metadata["sources"]]
        self._files: dict[tuple[int, int], np.ndarray] = {}
        with files.local_copy(self.directory) as local:
            try:
                self.token_counts = np.load(local / TOKEN_COUNTS, allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                path = self.directory / TOKEN_COUNTS
                raise UserError(f"{path} is damaged ({error}): {_AGAIN}") from None
            for entry in metadata["rows"]:
                shape = tuple(entry[name] for name in _SHAPE)
                dtype = row_dtype(*shape, len(self.token_counts))
                path = self.directory / _file_name(*shape)
                self._files[shape] = open_vector(local / path.name, dtype, entry["rows"], path)
        self.num_rows = sum(map(len, self._files.values()))

    def select(self, max_seq_length: int, max_predictions: int) -> list[np.ndarray]:
        """Returns the rows for a stage with these lengths, as arrays of `row_dtype`.

        Raises:
          UserError: There are none, or some have more predictions than the stage takes.
        """
        shapes = [shape for shape in self._files if shape[0] == max_seq_length]
        if not shapes:
            lengths = ", ".join(map(str, sorted({length for length, _ in self._files})))
            raise UserError(
                f"no record of config.data.input has {max_seq_length} tokens, the max_seq_length "
                f"of a stage in config.train.stages; there are records of {lengths}: add such "
                "files, or set the stage's max_seq_length, or its fraction to 0"
            )
        most = max(predictions for _, predictions in shapes)
        if most > max_predictions:
            raise UserError(
                f"the records of {max_seq_length} tokens in config.data.input have {most} "
                f"predictions, but the stage's max_predictions_per_seq is {max_predictions}; set "
                f"it to {most} in config.train.stages"
            )
        return [self._files[shape] for shape in shapes]


def summary(metadata: dict[str, Any], directory: str | os.PathLike) -> str:
    """Returns a summary of the rows, and a command that trains on them."""
    shapes = [tuple(entry[name] for name in _SHAPE) for entry in metadata["rows"]]
    lines = [
        f"{entry['rows']:,} rows of {length} tokens and {predictions} predictions"
        for entry, (length, predictions) in zip(metadata["rows"], shapes, strict=True)
    ]
    options = metadata["options"]
    keys = ("tokenizer", "lowercase", "vocab_size")
    flags = training_flags({key: options[key] for key in keys}, options["input"], shapes)
    lines.append(
        f"the rows are in {directory}\nnext: python -m bert_jax.main --config=configs/base.py "
        f"--workdir=DIR --config.data.store={shlex.quote(os.fspath(directory))} {flags}"
    )
    return "\n".join(lines)


def training_flags(
    options: dict[str, Any], inputs: Sequence[str], shapes: Sequence[tuple[int, int]]
) -> str:
    """Returns the flags of `bert_jax.main` for rows of these lengths and predictions."""
    values = {"data.format": FORMAT, "data.input": ",".join(inputs)}
    for key, value in options.items():
        values[f"{'model' if key == 'vocab_size' else 'data'}.{key}"] = value
    if len(shapes) == 1:
        # Rows of one length train in one stage; the config has two by default.
        values |= {
            "train.stages[0].fraction": 1.0,
            **{f"train.stages[0].{k}": v for k, v in zip(_SHAPE, shapes[0], strict=True)},
            "train.stages[1].fraction": 0.0,
        }
    return " ".join(shlex.quote(f"--config.{key}={value}") for key, value in values.items())


def _file_name(max_seq_length: int, max_predictions: int) -> str:
    return f"rows-{max_seq_length:05d}-{max_predictions:04d}.bin"
