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


class TableRow(NamedTuple):
    """One row of a file.

    Attributes:
      where: The place where the row begins, FILE:LINE.
      number: The position among the rows, from 0. Skipped rows count, blank lines do not.
      values: The values by column.
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

    TSV has one row per line and no quoting. CSV follows RFC 4180, as spreadsheets write it. JSON
    lines have one object per line. The first line of TSV and CSV names the columns.

    Args:
      path: The file, whose extension gives the format.
      needed: The columns that must exist.
      bad_rows: Handles rows that lack a column or are not text.
      must_stay: See `BadRecords.add`.
      header: The names of the columns if the file has no header line.

    Raises:
      UserError: The file cannot be read or lacks a column, or a row is bad.
    """
    format = path.suffix.removeprefix(".").lower()
    if format not in FORMATS:
        raise UserError(f"{path} must be named .tsv, .csv or .jsonl")
    try:
        with files.open_input(path) as stream:
            if format == "jsonl":
                rows = ((line.number, line) for line in json_lines(stream))
            else:
                rows = _tsv_fields(stream) if format == "tsv" else _csv_fields(path, stream)
                columns = list(header) or next(rows, (1, []))[1]
                _check_columns(path, columns, needed)
                rows = _without_blank(rows, len(columns))
            for number, (line_number, row) in enumerate(rows):
                where = f"{path}:{line_number}"
                with bad_rows.catching(where, must_stay=must_stay):
                    values = (
                        _json_values(row.parse(), needed)
                        if format == "jsonl"
                        else _named_fields(columns, row)
                    )
                    if not all(map(is_unicode, values.values())):
                        raise BadRecord("invalid UTF-8", "not valid UTF-8")
                    yield TableRow(where, number, values)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or 'no such file'}") from None


def _decoded(stream: BinaryIO) -> Iterator[str]:
    """Yields lines with their ends. Bytes that are not UTF-8 become lone surrogates."""
    for number, line in enumerate(stream):
        yield line.decode("utf-8" if number else "utf-8-sig", "surrogateescape")


def _tsv_fields(stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(_decoded(stream), 1):
        yield number, line.rstrip("\r\n").split("\t")


def _csv_fields(path: Path | epath.Path, stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    # The default limit of the module is 131,072 characters.
    csv.field_size_limit(MAX_RECORD_BYTES)
    reader = csv.reader(_decoded(stream), strict=True)
    first = 1
    try:
        for fields in reader:
            yield first, fields
            # A quoted value may span several lines.
            first = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{first}: not valid CSV: {error}") from None


def _check_columns(path: Path | epath.Path, columns: Sequence[str], needed: Sequence[str]) -> None:
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
    """Omits blank lines, except for empty values in the middle of a one-column table."""
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
    return dict(zip(columns, fields, strict=True))


def _json_values(values: dict[str, Any], needed: Sequence[str]) -> dict[str, str]:
    for column in needed:
        value = values.get(column)
        # NaN often marks a gap in a table.
        if value is None or isinstance(value, float) and not math.isfinite(value):
            raise BadRecord("missing field", f"field {column!r} is {json.dumps(value)} or missing")
        if isinstance(value, dict | list):
            raise BadRecord("not a text", f"field {column!r} is not a text or a number")
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
        if not isinstance(value, dict | list)
    }


def as_number(text: str) -> float | None:
    """Returns a number that is finite in float32; None if the text is not one."""
    try:
        # Python reads 1_000 as a number; in a table it is more likely something else.
        number = float("" if "_" in text else text)
    except ValueError:
        return None
    return number if abs(number) <= float(np.finfo(np.float32).max) else None
