"""Reads tables: the rows of TSV, CSV and JSON-lines files."""

import csv
import functools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from etils import epath

from bert_jax.base.errors import UserError
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.readers import (
    INVALID_UTF8,
    MAX_RECORD_BYTES,
    Line,
    check_unicode,
    is_unicode,
    json_lines,
    open_text,
)

# The formats of tables by the suffix of the file.
FORMATS = {"tsv": "tsv", "csv": "csv", "jsonl": "jsonl", "json": "jsonl"}


class TableRow(NamedTuple):
    """One row of a file.

    Attributes:
      where: Where the row begins, FILE:LINE.
      line: The line where it begins, from 1.
      number: The position among the rows, from 0. Skipped rows count, blank lines do not.
      values: The values by column.
    """

    where: str
    line: int
    number: int
    values: dict[str, str]


def read_rows(
    path: Path | epath.Path,
    needed: Sequence[str],
    bad_rows: BadRecords,
    *,
    is_required: bool = False,
    header: Sequence[str] = (),
) -> Iterator[TableRow]:
    """Yields the rows of a TSV, CSV or JSON-lines file in order; see `table_rows`.

    Raises:
      UserError: The file cannot be read or lacks a column, or a row is bad.
    """
    format = FORMATS.get(path.suffix.removeprefix(".").lower())
    if format is None:
        raise UserError(f"{path} must be named .tsv, .csv, .jsonl or .json")
    try:
        with open_text(path) as (_, stream):
            yield from table_rows(
                path, stream, format, needed, bad_rows, is_required=is_required, header=header
            )
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or 'no such file'}") from None


def table_rows(
    path: object,
    stream: BinaryIO,
    format: str,
    needed: Sequence[str],
    bad_rows: BadRecords,
    *,
    is_required: bool = False,
    header: Sequence[str] = (),
) -> Iterator[TableRow]:
    """Returns an iterator of the rows of a table, which raises UserError at a bad one.

    TSV has one row per line and no quoting. CSV follows RFC 4180, as spreadsheets write it. Their
    first line names the columns. JSON lines have one object per line. Blank lines are omitted,
    except for empty values in the middle of a table with one column.

    Args:
      path: The name of the file, for messages.
      stream: The content in UTF-8.
      format: One of the values of FORMATS.
      needed: The columns that must exist.
      bad_rows: Handles rows that lack a column or are not text.
      is_required: See `BadRecords.add`.
      header: The names of the columns if a TSV or CSV file has no header line.

    Raises:
      UserError: A column is missing.
    """
    if format == "jsonl":
        found = ((line.number, line) for line in json_lines(stream))
        values_of = functools.partial(_json_values, needed=needed)
    else:
        found = _tsv_rows(path, stream) if format == "tsv" else _csv_rows(path, stream)
        columns = list(header) or next(found, (1, []))[1]
        _check_columns(path, columns, needed)
        found = _without_blank(found, len(columns))
        values_of = functools.partial(_named_fields, columns)

    def rows() -> Iterator[TableRow]:
        for number, (line, row) in enumerate(found):
            where = f"{path}:{line}"
            with bad_rows.catching(where, is_required=is_required):
                yield TableRow(where, line, number, values_of(row))

    return rows()


def _check_columns(path: object, columns: Sequence[str], needed: Sequence[str]) -> None:
    if any("\0" in column for column in columns):
        raise UserError(f"{path} has NUL bytes, as UTF-16 has; save it as UTF-8")
    for column in needed:
        if (count := columns.count(column)) != 1:
            # With old line endings, the first line is the whole file.
            known = ", ".join(columns)[:300]
            found = f"{count} columns are" if count else "no column is"
            raise UserError(f"{path}:1: {found} named {column!r}; the columns are: {known}")


def _without_blank(
    rows: Iterator[tuple[int, list[str]]], num_columns: int
) -> Iterator[tuple[int, list[str]]]:
    blank: list[int] = []
    for number, fields in rows:
        if fields in ([], [""]):
            blank.append(number)
            continue
        if num_columns == 1:
            yield from ((number, [""]) for number in blank)
        blank = []
        yield number, fields


def _named_fields(columns: Sequence[str], fields: Sequence[str]) -> dict[str, str]:
    if len(fields) != len(columns):
        detail = f"{len(fields)} columns instead of {len(columns)}"
        raise BadRecord("wrong number of columns", detail)
    if not is_unicode("".join(fields)):
        raise BadRecord(INVALID_UTF8, "not valid UTF-8")
    return dict(zip(columns, fields, strict=True))


def _json_values(line: Line, needed: Sequence[str]) -> dict[str, str]:
    values = line.parse()
    for column in needed:
        value = values.get(column)
        # NaN often marks a gap in a table.
        if value is None or isinstance(value, float) and not math.isfinite(value):
            raise BadRecord("missing field", f"field {column!r} is {json.dumps(value)} or missing")
        if isinstance(value, dict | list):
            raise BadRecord("not a text", f"field {column!r} is not a text or a number")
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
        if not isinstance(value, dict | list)
    }
    check_unicode("".join(texts.values()), "a field")
    return texts


def _lines(path: object, stream: BinaryIO) -> Iterator[str]:
    """Yields lines with their ends. Bytes that are not UTF-8 become lone surrogates."""
    for number, line in enumerate(iter(lambda: stream.readline(MAX_RECORD_BYTES + 1), b""), 1):
        if len(line) > MAX_RECORD_BYTES:
            raise UserError(f"{path}:{number}: the line is longer than {MAX_RECORD_BYTES:,} bytes")
        yield line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")


def _tsv_rows(path: object, stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(_lines(path, stream), 1):
        yield number, line.rstrip("\r\n").split("\t")


def _csv_rows(path: object, stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    # The default limit of the module is 131,072 characters.
    csv.field_size_limit(MAX_RECORD_BYTES)
    # Without `strict`, the rows after a quote that is never closed would become one row.
    reader = csv.reader(_lines(path, stream), strict=True)
    first = 1
    try:
        for fields in reader:
            yield first, fields
            # A quoted value may span several lines.
            first = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}:{first}: not valid CSV: {error}; a value that begins with a quote must end "
            "with one, and quotes inside it must be doubled"
        ) from None
