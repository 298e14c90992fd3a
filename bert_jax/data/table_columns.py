"""Reads one column of a CSV, TSV or Parquet file with pyarrow."""

from collections.abc import Iterator
from typing import BinaryIO

from bert_jax.errors import UserError
from bert_jax.files import first_line

# No row of a CSV or TSV file may be longer.
_BLOCK_BYTES = 2**24
_BATCH_ROWS = 64


def read_column(stream: BinaryIO, format: str, column: str, path: str) -> Iterator[bytes | None]:
    """Yields the values of a text column, row by row; None for a missing value.

    Memory is bounded by a block of a CSV file, or by a row group of a Parquet file.

    Args:
      stream: The file. A Parquet file must be seekable.
      format: "csv", "tsv" or "parquet". The first row of a CSV or TSV file names the columns.
      path: The name of the file, for messages.

    Raises:
      UserError: The file is damaged, or has no such column of text.
    """
    # This import takes a quarter of a second.
    import pyarrow as pa

    try:
        batches = _parquet(stream, column) if format == "parquet" else _csv(stream, format, column)
        for values in batches:
            yield from values.cast(pa.large_binary()).to_pylist()
    except KeyError:
        raise UserError(
            f"{path} has no column {column!r}; set data.text_field to the column of texts"
        ) from None
    except pa.ArrowNotImplementedError:
        raise UserError(f"{path}: the column {column!r} is not text") from None
    except pa.ArrowInvalid as error:
        raise UserError(f"{path} is not a valid {format} file: {first_line(error)}") from None


def _csv(stream: BinaryIO, format: str, column: str) -> Iterator:
    import pyarrow as pa
    from pyarrow import csv

    reader = csv.open_csv(
        stream,
        read_options=csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
        parse_options=csv.ParseOptions(
            delimiter="\t" if format == "tsv" else ",", newlines_in_values=True
        ),
        convert_options=csv.ConvertOptions(
            include_columns=[column], column_types={column: pa.binary()}
        ),
    )
    for batch in reader:
        yield batch.column(0)


def _parquet(stream: BinaryIO, column: str) -> Iterator:
    from pyarrow import parquet

    file = parquet.ParquetFile(stream, pre_buffer=False)
    if column not in file.schema_arrow.names:
        raise KeyError(column)
    for batch in file.iter_batches(_BATCH_ROWS, columns=[column], use_threads=False):
        yield batch.column(0)
