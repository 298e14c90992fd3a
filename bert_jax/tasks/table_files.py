"""Reads files of rows with named columns: TSV, CSV and JSON lines."""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.data.bad_records import BadRecord, BadRecords
from bert_jax.data.text_files import MAX_RECORD_BYTES, is_unicode, json_lines
from bert_jax.errors import UserError

FORMATS = ("tsv", "csv", "jsonl")
# Messages show this much of a first line that does not name columns.
_MAX_SHOWN = 300


class TableRow(NamedTuple):
    """One row of a file.

    Attributes:
      where: The place where it begins, FILE:LINE.
      number: Its position among the rows, from 0. Skipped rows count, blank lines do not.
      values: By column.
    """

    where: str
    number: int
    values: dict[str, str]


def read_rows(
    path: Path | epath.Path,
    needed: Sequence[str],
    bad_rows: BadRecords,
    *,
    must_stay: bool = False,
    header: Sequence[str] = (),
) -> Iterator[TableRow]:
    """Yields the rows of a file in order.

    TSV has one row per line and no quoting. CSV is written as by spreadsheets (RFC 4180). JSON
    lines have one object per line. The first line of TSV and CSV names the columns.

    Args:
      path: The file, whose extension gives the format.
      needed: The columns that must exist.
      bad_rows: What to do with a row that lacks a column or is not text.
      must_stay: See `BadRecords.add`.
      header: The names of the columns if the file has no first line with them.

    Raises:
      UserError: The file cannot be read or lacks a column, or a row is bad.
    """
    format = path.suffix.removeprefix(".").lower()
    if format not in FORMATS:
        raise UserError(f"{path} must be named .tsv, .csv or .jsonl")
    try:
        with files.open_input(path) as stream:
            if format == "jsonl":
                yield from _json_rows(path, stream, needed, bad_rows, must_stay)
            else:
                split = _tsv_lines if format == "tsv" else _csv_lines
                lines = split(path, _decoded(stream))
                yield from _table_rows(path, lines, needed, bad_rows, must_stay, header)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or 'no such file'}") from None


def _decoded(stream: BinaryIO) -> Iterator[str]:
    """Yields lines with their ends. Bytes that are not UTF-8 become lone surrogates."""
    for number, line in enumerate(stream):
        yield line.decode("utf-8" if number else "utf-8-sig", "surrogateescape")


def _tsv_lines(path: Path | epath.Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        yield number, line.rstrip("\r\n").split("\t")


def _csv_lines(path: Path | epath.Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    # The module's own limit is 131,072 characters.
    csv.field_size_limit(MAX_RECORD_BYTES)
    reader = csv.reader(lines, strict=True)
    while True:
        # A quoted value may span several lines.
        first = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{path}:{first}: not valid CSV: {error}") from None
        yield first, fields


def _table_rows(
    path: Path | epath.Path,
    lines: Iterator[tuple[int, list[str]]],
    needed: Sequence[str],
    bad_rows: BadRecords,
    must_stay: bool,
    header: Sequence[str],
) -> Iterator[TableRow]:
    columns = list(header) or next(lines, (1, []))[1]
    for column in needed:
        if column not in columns:
            known = ", ".join(columns) or "nothing"
            known = known if len(known) <= _MAX_SHOWN else f"{known[:_MAX_SHOWN]} ..."
            raise UserError(f"{path}:1: no column {column!r}; the columns: {known}")
        if columns.count(column) > 1:
            raise UserError(f"{path}:1: there are {columns.count(column)} columns {column!r}")
    for number, (line_number, fields) in enumerate(_without_blank(lines, len(columns))):
        where = f"{path}:{line_number}"
        with bad_rows.catching(where, must_stay=must_stay):
            if len(fields) != len(columns):
                detail = f"{len(fields)} columns instead of {len(columns)}"
                raise BadRecord("wrong number of columns", detail)
            if not all(map(is_unicode, fields)):
                raise BadRecord("invalid UTF-8", "not valid UTF-8")
            yield TableRow(where, number, dict(zip(columns, fields, strict=True)))


def _without_blank(
    lines: Iterator[tuple[int, list[str]]], num_columns: int
) -> Iterator[tuple[int, list[str]]]:
    """Omits blank lines, except for empty values in the middle of a table of one column."""
    blank: list[int] = []
    for number, fields in lines:
        if fields in ([], [""]):
            blank.append(number)
            continue
        if num_columns == 1:
            yield from ((number, [""]) for number in blank)
        blank = []
        yield number, fields


def _json_rows(
    path: Path | epath.Path,
    stream: BinaryIO,
    needed: Sequence[str],
    bad_rows: BadRecords,
    must_stay: bool,
) -> Iterator[TableRow]:
    for number, line in enumerate(json_lines(stream)):
        where = f"{path}:{line.number}"
        with bad_rows.catching(where, must_stay=must_stay):
            values = line.parse()
            for column in needed:
                _check_value(column, values)
            texts = {
                name: value if isinstance(value, str) else json.dumps(value)
                for name, value in values.items()
                if not isinstance(value, dict | list)
            }
            if not all(map(is_unicode, texts.values())):
                raise BadRecord("invalid UTF-8", "not valid UTF-8")
            yield TableRow(where, number, texts)


def _check_value(column: str, values: dict[str, Any]) -> None:
    if column not in values:
        known = ", ".join(values) or "none"
        raise BadRecord("missing field", f"no field {column!r}; its fields: {known}")
    value = values[column]
    # NaN often marks a gap in a table.
    if value is None or isinstance(value, float) and not math.isfinite(value):
        raise BadRecord("missing field", f"field {column!r} is {json.dumps(value)}")
    if isinstance(value, dict | list):
        raise BadRecord("not a text", f"field {column!r} is not a text or a number")


def as_number(text: str) -> float | None:
    """Returns a number that is finite in float32; None if the text is not one."""
    try:
        # Python reads 1_000 as a number; in a table it is more likely something else.
        number = float("" if "_" in text else text)
    except ValueError:
        return None
    return number if abs(number) <= float(np.finfo(np.float32).max) else None
