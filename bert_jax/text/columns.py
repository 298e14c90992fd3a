"""Reads columns of Parquet files and of the Arrow files of `datasets`, row by row."""

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from bert_jax.base import files
from bert_jax.base.errors import UserError

_BATCH_ROWS = 64


def column_rows(
    format: str,
    path: str,
    stream: BinaryIO,
    columns: Sequence[str],
    start: int = 0,
    stop: int | None = None,
) -> Iterator[tuple[int, list[bytes | None]]]:
    """Yields the numbers of the rows, from 1, and their values; None for a missing value.

    Memory is bounded by a row group or record batch.

    Args:
      format: "parquet" or "arrow".
      path: The name of the file, for messages.
      stream: The file; for Parquet, it must be seekable.
      columns: The columns to read: of text, the first, or also of numbers, the others.
      start: The first byte of a Parquet file: the row groups that begin in the range are read.
      stop: The byte after the last; None for the end of the file.

    Raises:
      UserError: The file is damaged, or has no such column.
    """
    # This import takes a quarter of a second.
    import pyarrow as pa
    from pyarrow import ipc, parquet

    try:
        if format == "arrow":
            batches = ipc.open_stream(stream)
            names, row = batches.schema.names, 1
        else:
            if not stream.seekable():
                raise UserError(f"{path}: a Parquet file is read from its end; unpack it first")
            file = parquet.ParquetFile(stream, pre_buffer=False)
            names = file.schema_arrow.names
            groups, row = _row_groups(file.metadata, start, stop)
            batches = file.iter_batches(
                _BATCH_ROWS, row_groups=groups, columns=list(columns), use_threads=False
            )
        for column, key in zip(columns, ("data.text_field", "data.document_field"), strict=False):
            if column not in names:
                raise UserError(
                    f"{path}: no column is named {column!r}; the columns are: {', '.join(names)}; "
                    f"set {key} to one of them"
                )
        for batch in batches:
            if format == "arrow":
                # Arrow's reader takes the positions in a file as they are, and would read other
                # memory of the process.
                batch.validate(full=True)
            column = columns[0]
            values = [batch.column(column).cast(pa.large_binary()).to_pylist()]
            for column in columns[1:]:
                texts = batch.column(column).cast(pa.large_string())
                values.append(texts.cast(pa.large_binary()).to_pylist())
            for number, fields in enumerate(zip(*values, strict=True), row):
                yield number, list(fields)
            row += batch.num_rows
        if format == "arrow" and stream.read(1):
            raise UserError(f"{path} goes on after the end of its table; write one table a file")
    except pa.ArrowNotImplementedError:
        raise UserError(f"{path}: the column {column!r} is not text") from None
    except (pa.ArrowInvalid, OSError) as error:
        # Only the end of an Arrow file that is not complete is an OSError without a number.
        if isinstance(error, OSError) and (format == "parquet" or error.errno):
            raise
        reason = files.first_line(error)
        raise UserError(f"{path} is not a valid {format} file: {reason}") from None


def _row_groups(metadata: Any, start: int, stop: int | None) -> tuple[list[int], int]:
    """Returns the row groups that begin in a range of bytes, and the number of their first row."""
    groups, first, row = [], 1, 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        column = group.column(0)
        begins = (column.dictionary_page_offset or column.data_page_offset) if number else 0
        if start <= begins and (stop is None or begins < stop):
            first = first if groups else row
            groups.append(number)
        row += group.num_rows
    return groups, first
