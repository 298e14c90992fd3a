"""Reads documents from the rows of tables and from JSON lines: a row each, or a sentence a row."""

import itertools
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from bert_jax.base.errors import UserError
from bert_jax.text import readers
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.columns import column_rows
from bert_jax.text.document import Document, checked, text_of
from bert_jax.text.readers import json_lines
from bert_jax.text.sources import Piece, Place
from bert_jax.text.tables import table_rows

ROW_FORMATS = {"jsonl", "csv", "tsv", "parquet", "arrow"}
# The rows of a document if each is a sentence and nothing says where a document begins.
ROWS_PER_DOCUMENT = 1000


class Rows(NamedTuple):
    """What the rows of a table are.

    Attributes:
      text: The column or field of the text.
      document: The column or field with the name of the document; empty if there is none.
      are_sentences: Whether each row is a sentence. Consecutive rows with the same value of
        `document`, or ROWS_PER_DOCUMENT of them, are then a document.
    """

    text: str
    document: str = ""
    are_sentences: bool = False

    @property
    def fields(self) -> list[str]:
        return [self.text, self.document] if self.document else [self.text]

    def checked(self, text: str) -> str:
        """Returns a text; a sentence may be blank, a document may not."""
        if not self.are_sentences:
            return checked(text)
        readers.check_unicode(text, "the text")
        return text


def read_rows(
    format: str, path: str, stream: BinaryIO, piece: Piece, rows: Rows, bad: BadRecords
) -> Iterator[Document]:
    """Returns an iterator of the documents of a table or of JSON lines.

    Args:
      format: One of ROW_FORMATS.
      path: The name of the file, for messages.
      stream: The file.
      piece: The piece of the file to read.
      rows: What the rows are.
      bad: Handles bad rows.
    """
    if format == "jsonl":
        found = _json_rows(path, stream, piece, rows, bad)
    elif format in ("csv", "tsv"):
        found = _table_rows(format, path, stream, rows, bad)
    else:
        found = _column_rows(format, path, stream, piece, rows, bad)
    return _joined(found, rows, bad) if rows.are_sentences else found


def _json_rows(
    path: str, stream: BinaryIO, piece: Piece, rows: Rows, bad: BadRecords
) -> Iterator[Document]:
    for line in json_lines(stream, piece.start, piece.stop):
        with bad.catching(Place(path, line.number, piece.start)):
            values = line.parse()
            for field, key in zip(rows.fields, ("text_field", "document_field"), strict=False):
                if field not in values:
                    raise BadRecord(
                        "missing field",
                        f"no field {field!r}; its fields: {', '.join(values) or 'none'}; set "
                        f"data.{key}",
                    )
            text = values[rows.text]
            if not isinstance(text, str):
                raise BadRecord("not a string", f"field {rows.text!r} is not a string")
            name = str(values[rows.document]) if rows.document else ""
            yield Document(
                *(path, line.number, rows.checked(text), False), start=piece.start, id=name
            )


def _table_rows(
    format: str, path: str, stream: BinaryIO, rows: Rows, bad: BadRecords
) -> Iterator[Document]:
    try:
        found = table_rows(path, stream, format, rows.fields, bad)
    except UserError as error:
        remedy = "data.text_field to that of the texts"
        if rows.document:
            remedy += " and data.document_field to that of the documents"
        raise UserError(f"{error}; set {remedy}") from None
    for row in found:
        text = row.values[rows.text]
        # A table with one column may have blank lines.
        if text or len(row.values) > 1:
            with bad.catching(row.where):
                name = row.values.get(rows.document, "")
                yield Document(path, row.line, rows.checked(text), False, id=name)


def _column_rows(
    format: str, path: str, stream: BinaryIO, piece: Piece, rows: Rows, bad: BadRecords
) -> Iterator[Document]:
    found = column_rows(format, path, stream, rows.fields, piece.start, piece.stop)
    for number, (content, *name) in found:
        with bad.catching(f"{path}: row {number}"):
            text = rows.checked(text_of(content or b""))
            yield Document(path, number, text, False, id=(name[0] or b"").decode() if name else "")


def _joined(found: Iterator[Document], rows: Rows, bad: BadRecords) -> Iterator[Document]:
    """Yields documents of a sentence a line, each from consecutive rows."""
    number = itertools.count()

    def document_of(row: Document) -> object:
        return row.id if rows.document else next(number) // ROWS_PER_DOCUMENT

    for _, group in itertools.groupby(found, document_of):
        first = next(group)
        sentences, size = [], 0
        for row in itertools.chain([first], group):
            # The rest of a document that is too long is not held in memory.
            if size <= readers.MAX_RECORD_BYTES:
                sentences.append(" ".join(row.text.split()))
                size += len(row.text) + 1
        with bad.catching(first.place):
            text = "\n".join(filter(None, sentences))
            yield first._replace(text=checked(text), is_split=True)
