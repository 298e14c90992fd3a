"""Reads tables: the rows of TSV and CSV files, and one column of a Parquet file."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from etils import epath

from bert_jax.base.errors import UserError
from bert_jax.base.files import first_line
from bert_jax.text.bad_records import BadRecord
from bert_jax.text.readers import INVALID_UTF8, MAX_RECORD_BYTES, is_unicode

_BATCH_ROWS = 64


def open_table(
    path: Path | epath.Path,
    stream: BinaryIO,
    format: str,
    needed: Sequence[str],
    header: Sequence[str] = (),
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Reads the names of the columns of a TSV or CSV file, and then its rows.

    TSV has one row per line and no quoting. CSV follows RFC 4180, as spreadsheets write it.

    Args:
      path: The name of the file, for messages.
      stream: The content in UTF-8.
      format: "tsv" or "csv".
      needed: The columns that must exist.
      header: The names of the columns if the file has no header line.

    Returns:
      The names of the columns; and an iterator of the line at which each row begins, from 1, and
      its fields, which raises UserError where a CSV file is not valid.

    Raises:
      UserError: A column is missing.
    """
    rows = _tsv_rows(path, stream) if format == "tsv" else _csv_rows(path, stream)
    columns = list(header) or next(rows, (1, []))[1]
    if any("\0" in column for column in columns):
        raise UserError(f"{path} has NUL bytes, as UTF-16 has; save it as UTF-8")
    for column in needed:
        if (count := columns.count(column)) != 1:
            # With old line endings, the first line is the whole file.
            known = ", ".join(columns)[:300]
            found = f"{count} columns are" if count else "no column is"
            raise UserError(f"{path}:1: {found} named {column!r}; the columns are: {known}")
    return columns, rows


def named_fields(columns: Sequence[str], fields: Sequence[str]) -> dict[str, str]:
    """Returns the fields of a row by column.

    Raises:
      BadRecord: Their number is wrong, or they are not UTF-8.
    """
    if len(fields) != len(columns):
        detail = f"{len(fields)} columns instead of {len(columns)}"
        raise BadRecord("wrong number of columns", detail)
    if not is_unicode("".join(fields)):
        raise BadRecord(INVALID_UTF8, "not valid UTF-8")
    return dict(zip(columns, fields, strict=True))


def is_blank(fields: Sequence[str]) -> bool:
    """Returns whether a row is a blank line."""
    return list(fields) in ([], [""])


def _lines(path: Path | epath.Path, stream: BinaryIO) -> Iterator[str]:
    """Yields lines with their ends. Bytes that are not UTF-8 become lone surrogates."""
    for number, line in enumerate(iter(lambda: stream.readline(MAX_RECORD_BYTES + 1), b""), 1):
        if len(line) > MAX_RECORD_BYTES:
            raise UserError(f"{path}:{number}: the line is longer than {MAX_RECORD_BYTES:,} bytes")
        yield line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")


def _tsv_rows(path: Path | epath.Path, stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(_lines(path, stream), 1):
        yield number, line.rstrip("\r\n").split("\t")


def _csv_rows(path: Path | epath.Path, stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
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


def parquet_column(stream: BinaryIO, column: str, path: str) -> Iterator[bytes | None]:
    """Yields the values of a text column of Parquet, row by row; None for a missing value.

    Memory is bounded by a row group.

    Args:
      stream: The file, which must be seekable.
      path: The name of the file, for messages.

    Raises:
      UserError: The file is damaged, or has no such column of text.
    """
    # This import takes a quarter of a second.
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(stream, pre_buffer=False)
        if column not in (names := file.schema_arrow.names):
            known = ", ".join(names)
            raise UserError(
                f"{path}: no column is named {column!r}; the columns are: {known}; set "
                "data.text_field to that of the texts"
            )
        for batch in file.iter_batches(_BATCH_ROWS, columns=[column], use_threads=False):
            yield from batch.column(0).cast(pa.large_binary()).to_pylist()
    except pa.ArrowNotImplementedError:
        raise UserError(f"{path}: the column {column!r} is not text") from None
    except pa.ArrowInvalid as error:
        raise UserError(f"{path} is not a valid parquet file: {first_line(error)}") from None
