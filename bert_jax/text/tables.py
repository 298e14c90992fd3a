"""Reads the rows of tables: TSV, CSV, JSON lines, Parquet, and the Arrow files of `datasets`."""

import csv
import functools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from bert_jax.base.errors import UserError
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.formats import TABLES
from bert_jax.text.readers import MAX_RECORD_BYTES, Line, json_lines, open_text
from bert_jax.text.sources import Piece, Place

# The reason of a `BadRecord` that lacks a column.
MISSING = "missing field"
# The rows of Parquet that are converted at once.
_BATCH_ROWS = 64
_WHOLE = Piece(0)


class TableRow(NamedTuple):
    """One row of a file.

    Attributes:
      where: Where the row begins: its line, or its number in Parquet and Arrow.
      number: The position among the rows, from 0. Skipped rows count, blank lines do not.
    """

    where: Place
    number: int
    values: dict[str, str]


def read_rows(
    path: Path | epath.Path, needed: Sequence[str], bad_rows: BadRecords, **options: Any
) -> Iterator[TableRow]:
    """Yields the rows of a file, whose name tells its format, in order.

    Args:
      options: Further arguments of `table_rows`, which describes the others too.
    """
    format = TABLES.get(path.suffix.removeprefix(".").lower())
    if format is None:
        raise UserError(f"{path} must be named .{', .'.join(TABLES)}")
    with open_text(path) as (_, stream):
        yield from table_rows(path, stream, format, needed, bad_rows, **options)


def read_objects(
    path: Path | epath.Path, bad_rows: BadRecords
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yields where each object of a file begins, and the object with its nested values.

    The suffix of the file gives its format: JSON lines, an array in JSON, Parquet or Arrow.
    """
    open_table = _OPENED.get(path.suffix.lower())
    with open_text(path) as (_, stream):
        if open_table:
            schema, batches, first = open_table(stream, (), _WHOLE)
            classes = _class_names(schema)
            rows = (batch.slice(i, 1) for batch in batches for i in range(batch.num_rows))
            for number, stored in enumerate(rows, first):
                where = Place(str(path), number)
                with bad_rows.catching(where):
                    (row,) = stored.to_pylist()
                    names = {key: _named(row[key], names) for key, names in classes.items()}
                    yield where, row | names
            return
        for line in json_lines(stream):
            where = Place(str(path), line.number)
            with bad_rows.catching(where):
                yield where, line.parse()


def table_rows(
    path: object,
    stream: BinaryIO,
    format: str,
    needed: Sequence[str],
    bad_rows: BadRecords,
    *,
    header: Sequence[str] = (),
    lists: Sequence[str] = (),
    piece: Piece = _WHOLE,
    class_names: bool = True,
) -> Iterator[TableRow]:
    """Yields the rows of a table.

    TSV has one row per line and no quoting. CSV follows RFC 4180, as spreadsheets write it. Their
    first line names the columns. JSON lines have one object per line. Blank lines are omitted. Of a
    Parquet or Arrow file, only a row group or record batch is held in memory, and a missing value
    is an empty text.

    Args:
      stream: The content, of text in UTF-8; for Parquet, it must be seekable.
      needed: The columns that must exist. Of Parquet and Arrow, only they are read, or all without
        lists if there are none; the first must be text.
      header: The names of the columns if a TSV or CSV file has no header line.
      lists: The columns in which JSON lines, Parquet and Arrow may have a list. Its value is the
        list in JSON.
      piece: The lines, or the row groups of Parquet, to read; TSV and CSV are read whole.
      class_names: Whether classes have the names that `datasets` stores in Parquet and Arrow,
        rather than their numbers.
    """

    def check(columns: Sequence[str]) -> None:
        for column in needed:
            if (count := columns.count(column)) != 1:
                # With old line endings, the first line is the whole file.
                known = ", ".join(columns)[:300]
                found = f"{count} columns are" if count else "no column is"
                problem = f"{found} named {column!r}; the columns are: {known}"
                bad_rows.add(BadRecord(MISSING, problem), f"{path}:1", is_required=True)

    if format == "jsonl":
        found = ((line.number, line) for line in json_lines(stream, piece.start, piece.stop))
        values_of = functools.partial(_json_values, needed=needed, lists=lists)
    elif format in ("parquet", "arrow"):
        schema, batches, first = _OPENED[f".{format}"](stream, needed, piece)
        check(schema.names)
        columns = needed or [field.name for field in schema if not field.type.num_fields]
        classes = _class_names(schema) if class_names else {}
        found = _column_rows(path, batches, columns, first, needed, lists, classes)

        def values_of(row: Sequence[bytes | None]) -> dict[str, str]:
            return {c: (value or b"").decode() for c, value in zip(columns, row, strict=True)}
    else:
        found = _tsv_rows(stream) if format == "tsv" else _csv_rows(path, stream)
        columns = list(header) or next(found, (1, []))[1]
        check(columns)
        found = ((line, fields) for line, fields in found if fields not in ([], [""]))
        values_of = functools.partial(_named_fields, columns)
    for number, (line, row) in enumerate(found):
        # Lines are counted from the start of the piece, rows from that of the file.
        where = Place(str(path), line, piece.start if format == "jsonl" else 0)
        with bad_rows.catching(where):
            yield TableRow(where, number, values_of(row))


def _named_fields(columns: Sequence[str], fields: Sequence[str]) -> dict[str, str]:
    if len(fields) != len(columns):
        detail = f"{len(fields)} columns instead of {len(columns)}"
        raise BadRecord("wrong number of columns", detail)
    # Fails if bytes of the line were not UTF-8.
    "".join(fields).encode()
    return dict(zip(columns, fields, strict=True))


def _json_values(line: Line, needed: Sequence[str], lists: Sequence[str]) -> dict[str, str]:
    values = line.parse()
    values |= {name: json.dumps(values[name]) for name in lists if type(values.get(name)) is list}
    for column in needed:
        value = values.get(column)
        # NaN often marks a gap in a table.
        if value is None or isinstance(value, float) and not math.isfinite(value):
            problem = f"field {column!r} is {json.dumps(value)} or missing"
            raise BadRecord(MISSING, f"{problem}; its fields: {', '.join(values) or 'none'}")
        if isinstance(value, dict | list):
            raise BadRecord("not a text", f"field {column!r} is not a text or a number")
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
        if not isinstance(value, dict | list)
    }
    for column in needed or texts:
        # Fails for a lone surrogate ("\\ud800").
        texts[column].encode()
    return texts


def _lines(stream: BinaryIO) -> Iterator[str]:
    """Yields lines with their ends. Bytes that are not UTF-8 become lone surrogates."""
    for number, line in enumerate(stream, 1):
        yield line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")


def _tsv_rows(stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(_lines(stream), 1):
        yield number, line.rstrip("\r\n").split("\t")


def _csv_rows(path: object, stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    # The default limit of the module is 131,072 characters.
    csv.field_size_limit(MAX_RECORD_BYTES)
    # Without `strict`, the rows after a quote that is never closed would become one row.
    reader = csv.reader(_lines(stream), strict=True)
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


# What opens one of Arrow's formats returns: the schema, the record batches of the wanted columns,
# and the number of their first row, from 1.
Table = tuple[Any, Iterator[Any], int]


def _parquet_table(stream: BinaryIO, columns: Sequence[str], piece: Piece) -> Table:
    # This import takes a quarter of a second.
    from pyarrow import parquet

    file = parquet.ParquetFile(stream, pre_buffer=False)
    groups, first = _row_groups(file.metadata, piece)
    batches = file.iter_batches(
        _BATCH_ROWS, row_groups=groups, columns=list(columns) or None, use_threads=False
    )
    return file.schema_arrow, batches, first


def _arrow_table(stream: BinaryIO, columns: Sequence[str], piece: Piece) -> Table:
    from pyarrow import ipc

    def batches() -> Iterator[Any]:
        for batch in table:
            # Arrow's reader takes the positions in a file as they are, and would read other memory
            # of the process.
            batch.validate(full=True)
            yield batch
        if stream.read(1):
            raise ValueError("it goes on after the end of its table")

    table = ipc.open_stream(stream)
    return table.schema, batches(), 1


_OPENED = {".parquet": _parquet_table, ".arrow": _arrow_table}


def _column_rows(
    path: object,
    batches: Iterator[Any],
    columns: Sequence[str],
    first: int,
    needed: Sequence[str],
    lists: Sequence[str],
    classes: dict[str, Sequence[str]],
) -> Iterator[tuple[int, tuple[bytes | None, ...]]]:
    """Yields the number of each row and its values; None for a missing value."""
    import pyarrow as pa

    for batch in batches:
        values = []
        for column in columns:
            texts = batch.column(column)
            if names := classes.get(column):
                texts = _with_names(texts, names)
            if column in lists and texts.type.num_fields:
                values.append([json.dumps(value).encode() for value in texts.to_pylist()])
                continue
            is_number = pa.types.is_primitive(texts.type)
            if texts.type.num_fields or is_number and column in needed[:1]:
                raise UserError(
                    f"{path}: the column {column!r} has the type {texts.type}: it must be text"
                )
            # Bytes are text that is decoded later.
            if not pa.types.is_large_binary(texts.type) and not pa.types.is_binary(texts.type):
                texts = texts.cast(pa.large_string())
            values.append(texts.cast(pa.large_binary()).to_pylist())
        yield from enumerate(zip(*values, strict=True), first)
        first += batch.num_rows


def _class_names(schema: Any) -> dict[str, Sequence[str]]:
    """Returns the names of classes that `datasets` stores beside columns of their numbers."""
    stored = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    found = {}
    for name, feature in ((stored.get("info") or {}).get("features") or {}).items():
        # The feature of a list has one of its items. Early versions write other lists.
        while isinstance(feature, dict) and "feature" in feature:
            feature = feature["feature"]
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            found[name] = feature["names"]
    # Other programs keep what is stored when they drop or change a column.
    return {name: names for name, names in found.items() if name in schema.names}


def _with_names(numbers: Any, names: Sequence[str]) -> Any:
    """Returns a column of the names of classes, or of lists of them."""
    import pyarrow as pa

    is_list = bool(numbers.type.num_fields)
    named = [_named(value, names) for value in numbers.to_pylist()]
    texts = named if is_list else [value if value is None else str(value) for value in named]
    return pa.array(texts)


def _named(value: Any, names: Sequence[str]) -> Any:
    """Replaces the number of a class, or each in a list, by its name; -1 is a missing label."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if not isinstance(value, int) or value >= len(names):
        return value
    return None if value < 0 else names[value]


def _row_groups(metadata: Any, piece: Piece) -> tuple[list[int], int]:
    """Returns the row groups that begin in a piece, and the number of their first row."""
    groups, first, row = [], 1, 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        column = group.column(0)
        begins = (column.dictionary_page_offset or column.data_page_offset) if number else 0
        if piece.start <= begins and (piece.stop is None or begins < piece.stop):
            first = first if groups else row
            groups.append(number)
        row += group.num_rows
    return groups, first
