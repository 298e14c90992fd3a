"""Reads sequences, such as DNA and proteins: one a line, or FASTA."""

from collections.abc import Iterator
from typing import BinaryIO

from bert_jax.base.errors import UserError
from bert_jax.text.bad_records import BadRecords
from bert_jax.text.document import Document
from bert_jax.text.readers import text_lines
from bert_jax.text.sources import Piece, Place

# A longer record of FASTA, such as a chromosome, is divided into documents of this size.
DOCUMENT_CHARACTERS = 2**20


def apart(text: str) -> str:
    """Puts spaces between the characters of each line, so that each is a word."""
    return "\n".join(" ".join("".join(line.split())) for line in text.split("\n"))


def read_lines(path: str, stream: BinaryIO, piece: Piece, bad: BadRecords) -> Iterator[Document]:
    """Yields the lines that begin in a piece and are not blank; each is a document."""
    for line in text_lines(stream, piece.start, piece.stop):
        with bad.catching(Place(path, line.number, piece.start)):
            if text := line.text().strip():
                yield Document(path, line.number, text, is_split=True, start=piece.start)


def read_fasta(path: str, stream: BinaryIO, piece: Piece, bad: BadRecords) -> Iterator[Document]:
    """Yields the sequences of the records that begin in a piece, with their characters apart."""
    name, first, lines, size, is_new = "", 0, [], 0, False

    def document() -> Iterator[Document]:
        if is_new and not size:
            bad.drop("empty", Place(path, first, piece.start))
        if size:
            text = apart("".join(lines))
            yield Document(path, first, text, is_split=True, start=piece.start, id=name)

    for line in text_lines(stream, piece.start):
        with bad.catching(Place(path, line.number, piece.start), is_required=True):
            text = line.text()
        if text.startswith(";"):  # A comment.
            continue
        if text.startswith(">"):
            yield from document()
            if piece.stop is not None and stream.tell() - len(line.content) >= piece.stop:
                return
            name, first, lines, size = text[1:].partition(" ")[0].strip(), line.number, [], 0
            is_new = True
        elif first:
            lines.append(text.strip())
            size += len(lines[-1])
            if size >= DOCUMENT_CHARACTERS:
                yield from document()
                first, lines, size, is_new = line.number + 1, [], 0, False
        elif piece.start == 0 and text.strip():
            raise UserError(f'{path}:{line.number}: not FASTA: a record begins with ">"')
    yield from document()
