"""A file of texts to a file of their features, a window at a time.

A window of texts is read, tokenized, computed in batches of like length and written in
the file's order; memory is bounded by the window, whatever the size of the file.
"""

import gzip
import json
import math
import os
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.inference import encode_text as rows_lib
from bert_jax.inference.arguments import open_output
from bert_jax.inference.bert import Bert
from bert_jax.inference.encode_text import Row, Text

# What a window holds at the most: the features of so many bytes and texts, of so many
# bytes (and one text more).
_WINDOW_FEATURE_BYTES = 2**26
_WINDOW_TEXT_BYTES = 2**22
_WINDOW_TEXTS = 4096
# Tokenized together.
_CHUNK_TEXTS = 256
_LINE_BYTES = 2**26
_COPY_BYTES = 2**16
# Of a line that is wrong, letters that are told.
_SHOWN = 80
_FIELDS = ("text", "text_b")
# Every tokenizer has a token for these; of other letters some are dropped.
_HAS_TOKEN = re.compile("[0-9A-Za-z]")
# As the original's extract_features.py writes them.
_DECIMALS = 6


class Summary(NamedTuple):
    """What was written.

    Attributes:
      num_texts: Lines with a text.
      num_cut: Texts that were longer than the length, and cut off there.
      first_cut: FILE:LINE of the first of these; empty without one.
    """

    num_texts: int
    num_cut: int
    first_cut: str


def check_output(output: str | os.PathLike, source: str | os.PathLike) -> None:
    """Refuses a file that cannot be written, or would take the place of what is read.

    Raises:
      UserError: it is neither FILE.npz nor FILE.jsonl, where no file can be, or the source.
    """
    path, given = open_output(output, _WRITERS), files.open_path(source, "--input")
    same = path == given
    if not (same or files.is_remote(path) or files.is_remote(given)):
        same = path.exists() and given.exists() and path.samefile(given)
    if same:
        raise UserError(f"--output is {path}, the file of --input: it would be lost")


def count_texts(bert: Bert, source: str | os.PathLike) -> int | None:
    """How many texts a file has; every line is looked at, before hours are spent on the first.

    Args:
      bert: The model that is to read them.
      source: As `write_features` takes it.

    Returns:
      Their number; None of a pipe, which can be read but once.

    Raises:
      UserError: a line that cannot be used, with file and line; or none has a text.
    """
    path = files.open_path(source, "--input")
    if path.exists() and not (path.is_file() or path.is_dir()):
        return None
    count = 0
    for where, text in _texts(source):
        count += 1
        _check_segments(bert, where, text)
        sides = text if isinstance(text, tuple) else (text,)
        for side in sides:
            rows_lib.check_text(side, lambda where=where: where)
        if not all(_HAS_TOKEN.search(side) for side in sides):
            rows_lib.encode(bert.tokenizer, [text], sys.maxsize, places=[where])
    if not count:
        raise _no_text(source)
    return count


def _no_text(source: str | os.PathLike) -> UserError:
    return UserError(f'{source} holds no text; write a line {{"text": "..."}} for each')


def write_features(
    bert: Bert,
    source: str | os.PathLike,
    output: str | os.PathLike,
    *,
    layers: tuple[int, ...],
    pooling: str,
    max_length: int | None = None,
    advance: Callable[[int], None] = lambda texts: None,
) -> Summary:
    """Writes the features of every line of a file, in its order.

    Args:
      bert: The model.
      source: JSON lines, an object each with `text` and maybe `text_b`; blank lines are
        passed over. FILE.gz is unpacked.
      output: FILE.jsonl: for each text a line with `features`, of "tokens" a list of them
        and beside it the `tokens`, rounded to six decimals. FILE.npz: `features` float32
        [N, D]; of "tokens" [T, D], where T counts the tokens of all texts, their
        `input_ids` int32 [T] and `offsets` int64 [N + 1]: where each text begins. Of
        several layers there is an axis of them before D. The file is whole or absent.
      layers: As `Bert.encode` takes them.
      pooling: As there.
      max_length: As there.
      advance: Called with the number of texts just written.

    Raises:
      UserError: a line that cannot be used, with file and line; none has a text; or what
        `check_output` and `Bert.encode` refuse.
    """
    check_output(output, source)
    chosen, length = bert.layers(layers), bert.length(max_length)
    vector = (len(chosen), bert.config.hidden_size)[len(chosen) == 1 :]
    num_texts = num_cut = 0
    first_cut = ""
    with files.new_file(output) as stream:
        writer = _WRITERS[Path(output).suffix](stream, bert, vector, pooling)
        for window in _windows(bert, source, length, math.prod(vector), pooling):
            rows = [row for _, row in window]
            features = bert.features(rows, chosen, pooling)
            for row, x in zip(rows, features, strict=True):
                writer.write(row, x[..., 0, :] if len(chosen) == 1 else x)
            cut = [where for where, row in window if row.num_cut]
            first_cut = first_cut or next(iter(cut), "")
            num_texts, num_cut = num_texts + len(rows), num_cut + len(cut)
            advance(len(rows))
        if not num_texts:
            raise _no_text(source)
        writer.finish()
    return Summary(num_texts, num_cut, first_cut)


def _windows(
    bert: Bert, source: str | os.PathLike, length: int, vector_size: int, pooling: str
) -> Iterator[list[tuple[str, Row]]]:
    """FILE:LINE and tokens of texts, as many as the limits of a window allow."""
    window: list[tuple[str, Row]] = []
    num_bytes = 0
    for where, row in _rows(bert, source, length):
        size = 4 * vector_size * (len(row.input_ids_L) if pooling == "tokens" else 1)
        if window and (num_bytes + size > _WINDOW_FEATURE_BYTES or len(window) >= _WINDOW_TEXTS):
            yield window
            window, num_bytes = [], 0
        window.append((where, row))
        num_bytes += size
    if window:
        yield window


def _rows(bert: Bert, source: str | os.PathLike, length: int) -> Iterator[tuple[str, Row]]:
    chunk: list[tuple[str, Text]] = []
    num_bytes = 0
    for where, text in _texts(source):
        _check_segments(bert, where, text)
        chunk.append((where, text))
        num_bytes += len(text) if isinstance(text, str) else sum(map(len, text))
        if len(chunk) >= _CHUNK_TEXTS or num_bytes > _WINDOW_TEXT_BYTES:
            yield from _tokenized(bert, chunk, length)
            chunk, num_bytes = [], 0
    yield from _tokenized(bert, chunk, length)


def _check_segments(bert: Bert, where: str, text: Text) -> None:
    if isinstance(text, tuple) and bert.config.type_vocab_size < 2:
        raise UserError(f"{where}: {bert.source} knows one segment, and takes no `text_b`")


def _tokenized(bert: Bert, chunk: list[tuple[str, Text]], length: int) -> Iterator[tuple[str, Row]]:
    places = [where for where, _ in chunk]
    rows = rows_lib.encode(bert.tokenizer, [text for _, text in chunk], length, places=places)
    return zip(places, rows, strict=True)


def _texts(source: str | os.PathLike) -> Iterator[tuple[str, Text]]:
    """FILE:LINE and text of every line that has one."""
    path = files.open_path(source, "--input")
    if not path.exists():
        raise UserError(f"--input is {path}: there is no such file")
    if path.is_dir():
        raise UserError(f"--input is {path}, which is a directory; it must be a file")
    number = 0
    for line in _lines(path):
        number += 1
        where = f"{path}:{number}"
        if len(line) > _LINE_BYTES:
            raise UserError(f"{where} is longer than {_LINE_BYTES:,} bytes; divide the text")
        if line := line.strip():
            yield where, _parsed(line, where, "utf-8-sig" if number == 1 else "utf-8")


def _lines(path: Path | epath.Path) -> Iterator[bytes]:
    """Lines with their ends; of too long a one its beginning."""
    with files.open_input(path) as stream:
        packed = path.suffix == ".gz"
        lines = gzip.GzipFile(fileobj=stream) if packed else stream
        try:
            while line := lines.readline(_LINE_BYTES + 1):
                yield line
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"--input is {path}, which is no whole gzip file: {error}") from None


def _parsed(line: bytes, where: str, encoding: str) -> Text:
    try:
        values = json.loads(line.decode(encoding))
    except UnicodeDecodeError:
        raise UserError(f"{where} is not valid UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not a JSON object: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f'{where} is not a JSON object; it must be {{"text": "..."}}')
    if "text" not in values:
        fields = ", ".join(values)[:_SHOWN] or "none"
        raise UserError(f"{where} has no field `text`; its fields: {fields}")
    # A null is what tables without a second sentence are often written with.
    sides = [values[name] for name in _FIELDS if values.get(name) is not None or name == "text"]
    for name, side in zip(_FIELDS, sides, strict=False):
        if not isinstance(side, str):
            raise UserError(f"{where}: `{name}` is {json.dumps(side)[:_SHOWN]}; it must be a text")
        if not side.strip():
            raise UserError(f"{where}: `{name}` is empty; give it some text")
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


class _JsonlWriter:
    """A line for each text."""

    def __init__(self, stream: BinaryIO, bert: Bert, vector: tuple[int, ...], pooling: str):
        self._stream = stream
        self._tokenizer = bert.tokenizer if pooling == "tokens" else None

    def write(self, row: Row, features: np.ndarray) -> None:
        values = {}
        if self._tokenizer:
            values["tokens"] = [self._tokenizer.id_to_token(i) for i in row.input_ids_L]
        values["features"] = np.round(features.astype(np.float64), _DECIMALS).tolist()
        self._stream.write(json.dumps(values, ensure_ascii=False).encode() + b"\n")

    def finish(self) -> None:
        pass


class _NpzWriter:
    """Arrays, whose shapes stand before their values: these wait in scratch files."""

    def __init__(self, stream: BinaryIO, bert: Bert, vector: tuple[int, ...], pooling: str):
        self._stream = stream
        self._arrays = {"features": (np.dtype(np.float32), vector)}
        if pooling == "tokens":
            self._arrays["input_ids"] = (np.dtype(np.int32), ())
            self._arrays["offsets"] = (np.dtype(np.int64), ())
        # Gone with the process, however that ends; on the disk that has to hold them.
        folder = Path(stream.name).parent
        self._scratch = {name: tempfile.TemporaryFile(dir=folder) for name in self._arrays}
        self._num_tokens = 0
        self._add("offsets", np.int64(0))

    def write(self, row: Row, features: np.ndarray) -> None:
        self._num_tokens += len(row.input_ids_L)
        self._add("features", features)
        self._add("input_ids", row.input_ids_L)
        self._add("offsets", np.int64(self._num_tokens))

    def finish(self) -> None:
        with zipfile.ZipFile(self._stream, "w", zipfile.ZIP_STORED) as archive:
            for name, (dtype, shape) in self._arrays.items():
                with self._scratch[name] as scratch:
                    count = scratch.tell() // (dtype.itemsize * math.prod(shape))
                    header = {
                        "descr": np.lib.format.dtype_to_descr(dtype),
                        "fortran_order": False,
                        "shape": (count, *shape),
                    }
                    scratch.seek(0)
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array_header_1_0(member, header)
                        shutil.copyfileobj(scratch, member, _COPY_BYTES)

    def _add(self, name: str, values: np.ndarray | np.generic) -> None:
        if name in self._scratch:
            self._scratch[name].write(values.tobytes())


_WRITERS = {".npz": _NpzWriter, ".jsonl": _JsonlWriter}
