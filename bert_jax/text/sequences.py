"""Reads sequences, such as DNA and proteins: one a line, or FASTA."""

from collections.abc import Iterator
from typing import BinaryIO

from bert_jax.base.errors import UserError
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.document import Document, checked
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
                yield Document(path, line.number, checked(text), is_split=True, start=piece.start)


def read_fasta(path: str, stream: BinaryIO, piece: Piece, bad: BadRecords) -> Iterator[Document]:
    """Yields the sequences of the records that begin in a piece, with their characters apart.

    A record with a bad line is skipped as a whole; of a divided record, the document with the line.

    Raises:
      UserError: The file begins with something else.
    """
    name, first, lines, size, problem, is_rest = "", 0, [], 0, None, True

    def document() -> Iterator[Document]:
        if problem:
            bad.add(*problem)
        elif size:
            text = apart("".join(lines))
            yield Document(path, first, text, is_split=True, start=piece.start, id=name)
        elif not is_rest:
            bad.drop("empty", Place(path, first, piece.start))

    for line in text_lines(stream, piece.start):
        try:
            text, error = line.text(), None
        except BadRecord as found:
            text = (line.content or b"").decode("utf-8-sig", "replace")
            error = found, Place(path, line.number, piece.start)
        if text.startswith(";"):  # A comment.
            continue
        if text.startswith(">"):
            yield from document()
            if piece.stop is not None and stream.tell() - len(line.content) >= piece.stop:
                return
            name, first, lines, size = text[1:].partition(" ")[0].strip(), line.number, [], 0
            problem, is_rest = error, False
        elif first:
            lines.append(text.strip())
            size += len(lines[-1])
            problem = problem or error
            if size >= DOCUMENT_CHARACTERS:
                yield from document()
                first, lines, size, problem, is_rest = line.number + 1, [], 0, None, True
        elif piece.start == 0 and error:
            bad.add(*error)
        elif piece.start == 0 and text.strip():
            raise UserError(f'{path}:{line.number}: not FASTA: a record begins with ">"')
    yield from document()
