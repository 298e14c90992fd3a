"""Reads files of rows with named columns: TSV, CSV and JSON lines."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.readers import check_unicode, json_lines
from bert_jax.text.tables import is_blank, named_fields, open_table

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

    The first line of TSV and CSV (see `open_table`) names the columns. JSON lines have one object
    per line.

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
                columns, rows = open_table(path, stream, format, needed, header)
                rows = _without_blank(rows, len(columns))
            for number, (line_number, row) in enumerate(rows):
                where = f"{path}:{line_number}"
                with bad_rows.catching(where, must_stay=must_stay):
                    values = (
                        _json_values(row.parse(), needed)
                        if format == "jsonl"
                        else named_fields(columns, row)
                    )
                    yield TableRow(where, number, values)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or 'no such file'}") from None


def _without_blank(
    rows: Iterator[tuple[int, list[str]]], num_columns: int
) -> Iterator[tuple[int, list[str]]]:
    """Omits blank lines, except for empty values in the middle of a one-column table."""
    blank: list[int] = []
    for number, fields in rows:
        if is_blank(fields):
            blank.append(number)
            continue
        if num_columns == 1:
            yield from ((number, [""]) for number in blank)
        blank = []
        yield number, fields


def _json_values(values: dict[str, Any], needed: Sequence[str]) -> dict[str, str]:
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


def as_number(text: str) -> float | None:
    """Returns a number that is finite in float32; None if the text is not one."""
    try:
        # Python reads 1_000 as a number; in a table it is more likely something else.
        number = float("" if "_" in text else text)
    except ValueError:
        return None
    return number if abs(number) <= float(np.finfo(np.float32).max) else None
