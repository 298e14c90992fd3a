"""Reads documents from the rows of tables and from JSON lines: a row each, or a sentence a row."""

import itertools
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from bert_jax.text import readers
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.document import Document, checked
from bert_jax.text.formats import TABLES
from bert_jax.text.sources import Piece
from bert_jax.text.tables import table_rows

ROW_FORMATS = {*TABLES.values()}
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


def read_rows(
    format: str, path: str, stream: BinaryIO, piece: Piece, rows: Rows, bad: BadRecords
) -> Iterator[Document]:
    found = _documents(format, path, stream, piece, rows, bad)
    return _joined(found, rows, bad) if rows.are_sentences else found


def _documents(
    format: str, path: str, stream: BinaryIO, piece: Piece, rows: Rows, bad: BadRecords
) -> Iterator[Document]:
    for row in table_rows(path, stream, format, rows.fields, bad, piece=piece):
        text = row.values[rows.text]
        with bad.catching(row.where):
            source, line, start = row.where
            name = row.values.get(rows.document, "")
            # A sentence may be blank, a document may not.
            text = text if rows.are_sentences else checked(text)
            yield Document(source, line, text, is_split=False, start=start, id=name)


def _joined(found: Iterator[Document], rows: Rows, bad: BadRecords) -> Iterator[Document]:
    """Yields documents of a sentence a line, each from consecutive rows."""
    number = itertools.count()

    def document_of(row: Document) -> object:
        return row.id if rows.document else next(number) // ROWS_PER_DOCUMENT

    for _, group in itertools.groupby(found, document_of):
        first = next(group)
        sentences, size = [], 0
        with bad.catching(first.place):
            for row in itertools.chain([first], group):
                sentences.append(" ".join(row.text.split()))
                size += len(row.text) + 1
                if size > readers.MAX_RECORD_BYTES:
                    raise BadRecord("too long", f"more than {size:,} characters: split it")
            text = "\n".join(filter(None, sentences))
            yield first._replace(text=checked(text), is_split=True)
