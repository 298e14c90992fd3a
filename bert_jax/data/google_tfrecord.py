"""TFRecord files as google-research/bert's create_pretraining_data.py writes them.

Read, they are turned once into static rows (static_rows.py): a TFRecord file can only be
read from its beginning. Written, they are the pairs and masks of a token store.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax import files, tokenizers
from bert_jax.data.corpus import BUILT_IN, TFDS_PREFIX, Corpus, split_inputs
from bert_jax.data.examples import Window
from bert_jax.data.lean_tensorflow import tf
from bert_jax.data.static_rows import FORMAT, METADATA, ROW_FILES, RowsWriter, read_metadata
from bert_jax.data.store import store_path
from bert_jax.data.store_directory import empty_directory
from bert_jax.data.store_manifest import (
    given_tokenizer,
    source_difference,
    store_options,
    wanted_options,
)
from bert_jax.data.stream import StreamSpec, TokenStream
from bert_jax.data.tfrecord_reader import FEATURES, read_records
from bert_jax.errors import UserError
from bert_jax.progress import Progress
from bert_jax.tokenizers.sentencepiece import MODEL_FILE

# Records written at a time, at most.
_BATCH = 1024
_OPTIONS = ("vocab", "vocab_size", "tokenizer", "lowercase", "max_input_chars_per_word")
_EXPORT_FILES = re.compile(
    r"examples-\d+-of-\d+\.tfrecord|tokenizer\.json|vocab\.txt|sentencepiece\.model"
)


def prepare(
    data: ConfigDict, vocab_size: int, output: str | os.PathLike, *, show_progress: bool = True
) -> dict[str, Any]:
    """Turns the records of `data.input` into static rows, unless that is done already.

    Args:
      data: The `data` section of a config, its format `google_tfrecord`.
      vocab_size: The model's; `data.vocab` must have as many entries.
      output: Directory of the rows; what an interrupted conversion left is replaced.

    Returns:
      The metadata of the rows.

    Raises:
      UserError: names the file, and the number (from 1) of a record that cannot be used;
        or says in what finished rows at `output` differ from those asked for.
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


def write_tfrecords(
    store,
    tokenizer: tokenizers.Tokenizer,
    spec: StreamSpec,
    output: str | os.PathLike,
    *,
    dupe_factor: int = 10,
    num_shards: int = 1,
    show_progress: bool = True,
) -> int:
    """Writes epochs of a token store, `vocab.txt` beside them, for google-research/bert.

    Args:
      store, tokenizer: As for `TokenStream`.
      spec: What determines pairs and masks; its stream is what is written, in its order,
        one record to each file in turn. `batch_size` has no effect.
      output: A directory, new or empty; its files are there, whole, or not at all. Until
        then they are in `OUTPUT.unfinished`, or `OUTPUT/unfinished` if OUTPUT is there. In
        object storage all are uploaded at the end, the vocabulary last.
      dupe_factor: Epochs, each with its own pairs and masks.
      num_shards: Files.

    Returns:
      How many records were written.

    Raises:
      UserError: if something else is there, or it cannot be written (a full disk).
    """
    if files.is_remote(output):
        output = files.open_path(output, "the output")
        _require_empty(output, output)
        # The vocabulary is uploaded last: nobody reads the records without it.
        with files.local_output(output, last=("vocab.txt", MODEL_FILE)) as scratch:
            total = write_tfrecords(
                store,
                tokenizer,
                spec,
                scratch,
                dupe_factor=dupe_factor,
                num_shards=num_shards,
                show_progress=show_progress,
            )
        return total
    # Where a link leads; a directory that is there, which may be a mount point, stays.
    output = Path(os.path.realpath(store_path(output)))
    if output.is_dir():
        unfinished = output / "unfinished"
    else:
        unfinished = output.with_name(f"{output.name}.unfinished")
    _require_empty(output, unfinished)
    if dupe_factor < 1 or num_shards < 1:
        raise UserError(f"dupe_factor {dupe_factor} and num_shards {num_shards} must be above 0")
    stream = TokenStream(store, tokenizer, spec)
    examples = stream.examples
    windows = [(e, w) for e in range(dupe_factor) for w in range(len(examples.rows.windows(e)))]
    total = sum(examples.rows.count(epoch, window) for epoch, window in windows)
    with (
        empty_directory(unfinished, _EXPORT_FILES),
        _removed_on_error(unfinished),
        Progress("writing", total, "records", enabled=show_progress) as progress,
    ):
        with _refusing(output):
            tokenizer.save(unfinished)
        with _writers(unfinished, num_shards, output) as writers:
            # No more memory for long sequences than for those of 512 tokens.
            rows = max(1, min(_BATCH, _BATCH * 512 // spec.max_seq_length))
            spans = examples.spans(Window(0, 0, 0), 0, rows, rows, -(-total // rows))
            for first, plan in spans:
                batch = stream.build(plan, first)
                records = _serialized(batch, min(rows, total - first))
                with _refusing(output):
                    for number, record in enumerate(records, first):
                        writers[number % num_shards].write(record)
                progress.advance(len(records))
        _require_empty(output, unfinished)
        with _refusing(output):
            if unfinished.parent == output:
                _move_out(unfinished, output)
            else:
                os.replace(unfinished, output)
    return total


def _require_empty(output: Path | epath.Path, unfinished: Path | epath.Path) -> None:
    """Refuses an output where anything but our unfinished directory is."""
    if output.exists() and (not output.is_dir() or any(p != unfinished for p in output.iterdir())):
        raise UserError(f"{output} is there and not empty: give a directory that is new")


@contextlib.contextmanager
def _removed_on_error(directory: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


@contextlib.contextmanager
def _refusing(output: Path) -> Iterator[None]:
    """Says that `output` cannot be written (a full disk), and why."""
    try:
        yield
    except OSError as e:
        reason = e.strerror or e
    except tf.errors.OpError as e:
        # "PATH; REASON"
        reason = e.message.rpartition("; ")[2]
    else:
        return
    raise UserError(f"{output} cannot be written: {reason}; nothing is left of the attempt")


@contextlib.contextmanager
def _writers(directory: Path, number: int, output: Path) -> Iterator[list]:
    """Writers of the files, closed at the end."""
    writers = []
    try:
        with _refusing(output):
            for i in range(number):
                path = directory / f"examples-{i:05d}-of-{number:05d}.tfrecord"
                writers.append(tf.io.TFRecordWriter(str(path)))
        yield writers
        with _refusing(output):
            for writer in writers:
                writer.close()
    finally:
        # Again where all is well, which does nothing; else the files are of no more use.
        for writer in writers:
            with contextlib.suppress(tf.errors.OpError):
                writer.close()


def _move_out(unfinished: Path, output: Path) -> None:
    """Moves the files up: all, or none."""
    moved = []
    try:
        # The vocabulary last: nobody reads the records without it.
        for path in sorted(unfinished.iterdir(), key=lambda p: (p.suffix != ".tfrecord", p.name)):
            moved.append(output / path.name)
            os.replace(path, moved[-1])
        unfinished.rmdir()
    except BaseException:
        for path in moved:
            path.unlink(missing_ok=True)
        raise


def _serialized(batch: dict[str, np.ndarray], count: int) -> list[bytes]:
    """The first `count` rows of a batch as tf.train.Examples."""
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


def _sources(data: ConfigDict) -> list[dict[str, Any]]:
    """The files of `data.input` and their sizes, in order of their names."""
    for item in split_inputs(data.input):
        if item == BUILT_IN or item.startswith(TFDS_PREFIX):
            raise UserError(
                f"data.input is {item!r}, but with data.format={FORMAT} it must be globs of "
                "TFRecord files"
            )
    return Corpus(data.input).sources


def _checked(output: Path | epath.Path, data: ConfigDict, vocab_size: int) -> dict[str, Any]:
    """The metadata of finished rows, if they are those asked for.

    As with a token store, training goes on where the files, or the vocabulary's, are gone:
    then their names are compared.
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
