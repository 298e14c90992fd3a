"""Files of rows with named columns: TSV, CSV and JSONL, each row with its line."""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.tasks.sentence_rows import BadRows
from bert_jax.tasks.sources import is_encodable

FORMATS = ("tsv", "csv", "jsonl")
# csv's own limit, 131,072 characters, is a page of a book or two.
_MOST_CHARACTERS = 2**26
# Of a first line that is none of names.
_MOST_TOLD = 300


class Row(NamedTuple):
    """A row of a file.

    Attributes:
      where: Where it begins, FILE:LINE.
      number: Its place among the file's rows, from 0; those left out count, blank lines do not.
      values: By column.
    """

    where: str
    number: int
    values: dict[str, str]


def format_of(path: Path | epath.Path) -> str:
    """By the file's name.

    Raises:
      UserError: the name ends in none of FORMATS.
    """
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise UserError(f"{path} must be named .tsv, .csv or .jsonl, as it is read by its name")
    return suffix


def read_rows(
    path: Path | epath.Path,
    needed: Sequence[str],
    bad_rows: BadRows,
    *,
    must_stay: bool = False,
    header: Sequence[str] = (),
) -> Iterator[Row]:
    """The rows of a file, in order.

    TSV has one row a line, without quoting; CSV is as spreadsheets write it (RFC 4180); JSONL
    has one object a line. The first line of TSV and CSV names the columns.

    Args:
      path: What it is, its name says.
      needed: Columns that must be there.
      bad_rows: What is done with a row that lacks a column or is no text.
      must_stay: No row may be left out; see `BadRows.bad`.
      header: The columns' names, of a file that does not have them.

    Raises:
      UserError: the file cannot be read or lacks a column, or a row is bad.
    """
    format = format_of(path)
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
    """Lines with their ends; what is no UTF-8 becomes lone surrogates, which no text has."""
    for number, line in enumerate(stream):
        yield line.decode("utf-8" if number else "utf-8-sig", "surrogateescape")


def _tsv_lines(path: Path | epath.Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        yield number, line.rstrip("\r\n").split("\t")


def _csv_lines(path: Path | epath.Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_MOST_CHARACTERS)
    reader = csv.reader(lines, strict=True)
    while True:
        # A quoted value may go on over several lines.
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
    bad_rows: BadRows,
    must_stay: bool,
    header: Sequence[str],
) -> Iterator[Row]:
    columns = list(header) or next(lines, (1, []))[1]
    missing = [column for column in needed if column not in columns]
    if missing:
        there = ", ".join(columns) or "nothing"
        if len(there) > _MOST_TOLD:
            there = f"{there[:_MOST_TOLD]} ..."
        raise UserError(f"{path}:1: no column {missing[0]!r}; there is: {there}")
    twice = [column for column in needed if columns.count(column) > 1]
    if twice:
        raise UserError(f"{path}:1: there are {columns.count(twice[0])} columns {twice[0]!r}")
    for number, (line_number, fields) in enumerate(_without_blank(lines, len(columns))):
        where = f"{path}:{line_number}"
        if len(fields) != len(columns):
            bad_rows.bad(
                "wrong number of columns",
                where,
                f"{len(fields)} columns instead of {len(columns)}",
                must_stay,
            )
        elif not all(is_encodable(field) for field in fields):
            bad_rows.bad("invalid UTF-8", where, "not valid UTF-8", must_stay)
        else:
            yield Row(where, number, dict(zip(columns, fields, strict=True)))


def _without_blank(
    lines: Iterator[tuple[int, list[str]]], num_columns: int
) -> Iterator[tuple[int, list[str]]]:
    """Leaves blank lines out; in the middle of a table of one column these are empty values."""
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
    bad_rows: BadRows,
    must_stay: bool,
) -> Iterator[Row]:
    lines = (line for line in enumerate(_decoded(stream), 1) if line[1].strip())
    for number, (line_number, line) in enumerate(lines):
        where = f"{path}:{line_number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad_rows.bad("broken JSON", where, f"not a JSON object: {error}", must_stay)
            continue
        if not isinstance(values, dict):
            bad_rows.bad("broken JSON", where, "not a JSON object", must_stay)
            continue
        missing = [column for column in needed if _is_missing(values.get(column))]
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
            if not isinstance(value, dict | list)
        }
        if missing:
            name, known = missing[0], ", ".join(values) or "none"
            bad_rows.bad(
                "missing field",
                where,
                f"field {name!r} is {json.dumps(values[name])}"
                if name in values
                else f"no field {name!r}; there is: {known}",
                must_stay,
            )
        elif lists := [column for column in needed if column not in texts]:
            bad_rows.bad(
                "not a text", where, f"field {lists[0]!r} is not a text or a number", must_stay
            )
        elif not all(is_encodable(text) for text in texts.values()):
            bad_rows.bad("invalid UTF-8", where, "not valid UTF-8", must_stay)
        else:
            yield Row(where, number, texts)


def _is_missing(value: Any) -> bool:
    """Also NaN, which tables with gaps are often written with, and no text can mean."""
    return value is None or isinstance(value, float) and not math.isfinite(value)
