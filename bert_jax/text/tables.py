"""Reads the rows of tables: TSV, CSV, JSON lines, Parquet, and the Arrow files of `datasets`."""

import ast
import contextlib
import csv
import functools
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from bert_jax.base.errors import UserError
from bert_jax.base.files import check_regular
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.guess_format import TABLES
from bert_jax.text.readers import MAX_RECORD_BYTES, Line, json_lines, open_text, suffix_of
from bert_jax.text.sources import Piece, Place

# The reason of a `BadRecord` that lacks a column.
MISSING = "missing field"
# The rows of Parquet that are converted at once. Few bytes may mean a long text in each of them.
_BATCH_ROWS = 4
_WHOLE = Piece(0)
_NEIGHBORS = re.compile(r"""['"]\s+['"]""")


class TableRow(NamedTuple):
    """One row of a file.

    Attributes:
      where: Where the row begins: its line, or its number in Parquet and Arrow.
      number: The position among the rows, from 0. Skipped rows count, blank lines do not.
      values: The texts by column; lists and objects as they are. What is missing (null, NaN) is an
        empty text in all formats.
    """

    where: Place
    number: int
    values: dict[str, Any]


def files_of(path: Path | epath.Path) -> list[Path | epath.Path]:
    """Returns a file or, of a pattern such as data/train-*.parquet, the files in their order."""
    found = [] if path.exists() else sorted(path.parent.glob(path.name))
    return found or [path]


def read_rows(
    path: Path | epath.Path, needed: Sequence[str], bad_rows: BadRecords, **options: Any
) -> Iterator[TableRow]:
    """Yields the rows of a file, or of the files of a pattern, whose names tell the format.

    Args:
      options: Further arguments of `table_rows`, which describes the others too.
    """
    numbers = itertools.count()
    for file in files_of(path):
        format = TABLES.get(suffix_of(file).removeprefix("."))
        if format is None:
            raise UserError(f"{file} must be named .{', .'.join(TABLES)}")
        check_regular(file)
        with open_text(file) as (_, stream):
            found = table_rows(file, stream, format, needed, bad_rows, numbers=numbers, **options)
            yield from found


def classes_of(path: Path | epath.Path) -> dict[str, Sequence[str]]:
    """Returns the names of classes by column, in their order, as `datasets` stores them."""
    file = files_of(path)[0]
    if suffix_of(file) not in _OPENED:
        return {}
    with open_text(file) as (_, stream):
        return _class_names(_OPENED[suffix_of(file)](stream, (), _WHOLE)[0])


def table_rows(
    path: object,
    stream: BinaryIO,
    format: str,
    needed: Sequence[str],
    bad_rows: BadRecords,
    *,
    optional: Sequence[str] = (),
    header: Sequence[str] = (),
    lists: Sequence[str] = (),
    piece: Piece = _WHOLE,
    class_names: bool = True,
    numbers: Iterator[int] | None = None,
) -> Iterator[TableRow]:
    """Yields the rows of a table.

    TSV has one row per line and no quoting. CSV follows RFC 4180, as spreadsheets write it. Their
    first line names the columns. JSON lines have one object per line. Blank lines are omitted. Of a
    Parquet or Arrow file, only a row group or record batch is held in memory.

    Args:
      stream: The content, of text in UTF-8; for Parquet, it must be seekable.
      needed: The columns that must exist.
      optional: Columns that are read too if they exist. Of Parquet and Arrow, no others are read
        unless both are empty.
      header: The names of the columns if a TSV or CSV file has no header line.
      lists: The needed columns that may have lists.
      piece: The lines, or the row groups of Parquet, to read; TSV and CSV are read whole.
      class_names: Whether classes have the names that `datasets` stores in Parquet and Arrow,
        rather than their numbers.
      numbers: The positions of the rows, if others come before them.
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
        values_of = functools.partial(_json_values, needed=needed, optional=optional)
    elif format in ("parquet", "arrow"):
        columns = [*needed, *optional]
        schema, batches, first = _OPENED[f".{format}"](stream, columns, piece)
        check(schema.names)
        columns = [name for name in columns or schema.names if name in schema.names]
        classes = _class_names(schema) if class_names else {}
        found = _column_rows(batches, columns, first)

        def values_of(row: Sequence[Any]) -> dict[str, Any]:
            cells = zip(columns, row, strict=True)
            return {name: as_text(_named(x.as_py(), classes.get(name, ()))) for name, x in cells}
    else:
        found = _tsv_rows(stream) if format == "tsv" else _csv_rows(path, stream)
        columns = list(header) or next(found, (1, []))[1]
        check(columns)
        found = ((line, fields) for line, fields in found if fields not in ([], [""]))
        values_of = functools.partial(_named_fields, columns)
    for (line, row), number in zip(found, numbers or itertools.count(), strict=False):
        # Lines are counted from the start of the piece, rows from that of the file.
        where = Place(str(path), line, piece.start if format == "jsonl" else 0)
        with bad_rows.catching(where):
            values = values_of(row)
            for column in needed:
                if column not in lists and not isinstance(values[column], str):
                    problem = f"{column!r} is a list or an object, not a text or a number"
                    raise BadRecord("not a text", problem)
            yield TableRow(where, number, values)


def _named_fields(columns: Sequence[str], fields: Sequence[str]) -> dict[str, str]:
    if len(fields) != len(columns):
        detail = f"{len(fields)} columns instead of {len(columns)}"
        raise BadRecord("wrong number of columns", detail)
    # Fails if bytes of the line were not UTF-8.
    "".join(fields).encode()
    return dict(zip(columns, fields, strict=True))


def _json_values(line: Line, needed: Sequence[str], optional: Sequence[str]) -> dict[str, Any]:
    values = line.parse()
    for column in needed:
        if column not in values:
            known = ", ".join(values) or "none"
            raise BadRecord(MISSING, f"field {column!r} is missing; its fields: {known}")
    for column in (*needed, *optional) or values:
        # Fails for a lone surrogate ("\\ud800").
        json.dumps(values.get(column), ensure_ascii=False).encode()
    return {name: as_text(value) for name, value in values.items()}


def as_text(value: Any) -> Any:
    """Returns a value of JSON or Arrow as text, a list or an object as it is.

    What is missing (null, NaN) is an empty text, and a boolean is true or false.
    """
    if value is None or value != value:
        return ""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str | list | dict):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def listed(text: str) -> list[Any] | None:
    """Returns the list that a text holds in JSON or as pandas prints it into CSV, if it does."""
    if text.lstrip()[:1] not in ("[", "(", "{"):
        return None
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            found = parse(text.strip())
            # Python joins neighboring texts, as numpy prints them.
            is_joined = parse is ast.literal_eval and _NEIGHBORS.search(text)
            if isinstance(found, list | tuple | set) and not is_joined:
                return list(found)
    return None


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
    batches: Iterator[Any], columns: Sequence[str], first: int
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yields the number of each row and its scalars of Arrow."""
    for batch in batches:
        yield from enumerate(zip(*map(batch.column, columns), strict=True), first)
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


def _named(value: Any, names: Sequence[str]) -> Any:
    """Replaces the number of a class, or each in a list, by its name; -1 is a missing label."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if not (names and isinstance(value, int)) or value >= len(names):
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
