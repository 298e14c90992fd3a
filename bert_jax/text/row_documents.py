"""Reads documents from the rows of tables and from JSON lines: a row each, or a sentence a row."""

import itertools
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from bert_jax.text import readers
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.document import Document, checked
from bert_jax.text.guess_format import TABLES
from bert_jax.text.sources import Piece
from bert_jax.text.tables import TableRow, table_rows

ROW_FORMATS = {*TABLES.values()}
# The rows of a document if each is a sentence and nothing says where a document begins.
ROWS_PER_DOCUMENT = 1000


class Rows(NamedTuple):
    """What the rows of a table are.

    Attributes:
      text: The column or field of the text; or two of them with a comma between them, which become
        the two sentences of a document.
      document: The column or field with the name of the document; empty if there is none.
      are_sentences: Whether each row is a sentence. Consecutive rows with the same value of
        `document`, or ROWS_PER_DOCUMENT of them, are then a document.
    """

    text: str
    document: str = ""
    are_sentences: bool = False

    @property
    def fields(self) -> list[str]:
        return [*self.text.split(","), *([self.document] if self.document else [])]


def read_row_documents(
    format: str, path: str, stream: BinaryIO, piece: Piece, rows: Rows, bad: BadRecords
) -> Iterator[Document]:
    """Yields the documents of a table: a row each or, of sentences, one a line."""
    found = table_rows(path, stream, format, rows.fields, bad, piece=piece)
    number = itertools.count()

    def document_of(row: TableRow) -> object:
        if not rows.are_sentences:
            return row.number
        return row.values[rows.document] if rows.document else next(number) // ROWS_PER_DOCUMENT

    for _, group in itertools.groupby(found, document_of):
        (source, line, start), _, values = first = next(group)
        fields = rows.text.split(",")
        text, name = values[fields[0]], values.get(rows.document, "")
        with bad.catching(first.where):
            if len(fields) > 1:
                texts = (checked(values[x], f"field {x!r} has no text") for x in fields)
                text = "\n".join(" ".join(x.split()) for x in texts)
            elif rows.are_sentences:
                sentences, size = [], 0
                for row in itertools.chain([first], group):
                    sentences.append(" ".join(row.values[rows.text].split()))
                    size += len(row.values[rows.text]) + 1
                    if size > readers.MAX_RECORD_BYTES:
                        raise BadRecord("too long", f"more than {size:,} characters: split it")
                text = "\n".join(filter(None, sentences))
            is_split = rows.are_sentences or len(fields) > 1
            yield Document(source, line, checked(text), is_split, start=start, id=name)
