"""Turns TFRecord files of google-research/bert's create_pretraining_data.py into static rows.

They are converted once, because a TFRecord file can only be read from its beginning.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax import files
from bert_jax.data.corpus import BUILT_IN, TFDS_PREFIX, Corpus, split_inputs
from bert_jax.data.static_rows import FORMAT, METADATA, ROW_FILES, RowsWriter, read_metadata
from bert_jax.data.store import store_path
from bert_jax.data.store_directory import empty_directory
from bert_jax.data.store_manifest import (
    given_tokenizer,
    source_difference,
    store_options,
    wanted_options,
)
from bert_jax.data.tfrecord_reader import read_records
from bert_jax.errors import UserError
from bert_jax.progress import Progress

_OPTIONS = ("vocab", "vocab_size", "tokenizer", "lowercase", "max_input_chars_per_word")


def prepare(
    data: ConfigDict, vocab_size: int, output: str | os.PathLike, *, show_progress: bool = True
) -> dict[str, Any]:
    """Converts the records of `data.input` to static rows, unless that is done already.

    Args:
      data: The `data` section of a config, its format `google_tfrecord`.
      vocab_size: The model's; `data.vocab` must have as many entries.
      output: The directory of the rows. What an interrupted conversion left is replaced.

    Returns:
      The metadata of the rows.

    Raises:
      UserError: A record cannot be used, or finished rows at `output` were made differently.
    """
    output = store_path(output)
    if (output / METADATA).exists():
        return _checked(output, data, vocab_size)
    options = store_options(data, vocab_size)
    tokenizer = given_tokenizer(data, vocab_size)
    sources = _sources(data)
    megabytes = sum(source["bytes"] for source in sources) / 1e6
    with (
        empty_directory(output, ROW_FILES),
        files.local_output(output, last=(METADATA,)) as local,
        RowsWriter(local, tokenizer) as writer,
        Progress("reading TFRecord files", megabytes, "MB", enabled=show_progress) as progress,
    ):
        for number, source in enumerate(sources):
            records = 0
            for columns, num_bytes in read_records(source["path"], tokenizer):
                columns["source"] = np.full(len(columns["record"]), number)
                writer.append(columns)
                records += len(columns["record"])
                progress.advance(num_bytes / 1e6)
            source["records"] = records
        if not writer.num_rows:
            raise UserError("the files of data.input have no record in them")
        writer.write_metadata(
            {
                "tokenizer": {"kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint},
                "options": {key: options.get(key) for key in ("input", "vocab_path", *_OPTIONS)},
                "sources": sources,
            }
        )
    return read_metadata(output)


def _sources(data: ConfigDict) -> list[dict[str, Any]]:
    """Returns the files of `data.input` and their sizes, in order of their names."""
    for item in split_inputs(data.input):
        if item == BUILT_IN or item.startswith(TFDS_PREFIX):
            raise UserError(
                f"data.input is {item!r}, but with data.format={FORMAT} it must be globs of "
                "TFRecord files"
            )
    return Corpus(data.input).sources


def _checked(output: Path | epath.Path, data: ConfigDict, vocab_size: int) -> dict[str, Any]:
    """Returns the metadata of finished rows if they match the config.

    Training goes on where the input files or the vocabulary no longer exist; then their names
    are compared.
    """
    metadata = read_metadata(output)
    found = metadata["options"]
    wanted = wanted_options(found, data, vocab_size)
    for key in _OPTIONS:
        if found[key] != wanted.get(key):
            name = "model.vocab_size" if key == "vocab_size" else f"data.{key}"
            raise UserError(
                f"the rows in {output} were made with {name}={found[key]!r}, not "
                f"{wanted.get(key)!r}: use another directory or that value"
            )
    difference = source_difference(metadata, data, lambda: _sources(data))
    if difference:
        raise UserError(
            f"the rows in {output} were made of other files ({difference}): use another "
            "directory or the same data.input"
        )
    return metadata
