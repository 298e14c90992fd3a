"""Reads documents that are not rows: whole files, blocks of lines, articles of Wikipedia."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from etils import epath

from bert_jax.text import readers, wikipedia
from bert_jax.text.bad_records import INVALID_UTF8, BadRecord, BadRecords
from bert_jax.text.document import Document, checked
from bert_jax.text.readers import Line, text_lines
from bert_jax.text.sources import Piece, Place

_SPLIT_FILE = "split the file, or set data.format=sentences if blank lines separate the documents"


def read_whole(path: str, stream: BinaryIO, _: Piece, bad: BadRecords) -> Iterator[Document]:
    """Yields the file as a document."""
    content = stream.read(readers.MAX_RECORD_BYTES + 1)
    if len(content) > readers.MAX_RECORD_BYTES:
        bad.add(_too_long(_SPLIT_FILE), path)
    elif (text := _decoded(Place(path, 1), content, bad)) is not None:
        with bad.catching(Place(path, 1)):
            yield Document(path, 1, checked(text), is_split=False)


def read_sentences(
    path: str, stream: BinaryIO, piece: Piece, bad: BadRecords
) -> Iterator[Document]:
    """Yields the documents whose last blank line before them begins in the piece.

    Each line is a sentence. The first document of a file belongs to its first piece.
    """
    limit, start, stop = readers.MAX_RECORD_BYTES, piece.start, piece.stop
    content, size, first = bytearray(), 0, 1
    is_ours = start == 0
    for number, line in itertools.chain(text_lines(stream, start), [Line(0, b"")]):
        if line.strip():
            if is_ours:
                first = first if size else number
                size += len(line)
                if size <= limit:
                    content += line
            elif stream.tell() >= stop:
                return
            continue
        if size > limit:
            bad.add(_too_long("put a blank line after each document"), Place(path, first, start))
        elif size:
            text = _decoded(Place(path, first, start), bytes(content), bad)
            if text is not None:
                yield Document(path, first, text, is_split=True, start=start)
        if stop is not None and stream.tell() - len(line) >= stop:
            return
        content, size, is_ours = bytearray(), 0, True


def read_articles(
    path: Path | epath.Path, stored: BinaryIO, stream: BinaryIO, piece: Piece, bad: BadRecords
) -> Iterator[Document]:
    """Yields the articles of a dump that begin in the piece.

    Args:
      stored, stream: The file, and its unpacked content.
    """
    wiki = wikipedia.read_wiki(path)
    for content in wikipedia.raw_pages(path, stored, stream, piece.start, piece.stop):
        with bad.catching(path):
            page = wikipedia.read_page(content, wiki)
            if page.text is None:
                continue
            if len(page.text) < (least := wikipedia.MIN_CHARACTERS):
                bad.drop(f"fewer than {least} characters", f"{path}: {page.title}")
                continue
            yield Document(
                str(path),
                page.number,
                page.text,
                is_split=False,
                language=wiki.language,
                id=f"{wiki.name}:{page.number}",
            )


def _decoded(place: Place, content: bytes, bad: BadRecords) -> str | None:
    """Returns the text; None if it is not UTF-8 and bad documents are skipped."""
    try:
        # Only the first line of a file may begin with a byte order mark.
        return content.decode("utf-8-sig" if place.line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = place.line + content.count(b"\n", 0, error.start)
        bad.add(BadRecord(INVALID_UTF8, "not valid UTF-8"), place._replace(line=line))
        return None


def _too_long(remedy: str) -> BadRecord:
    limit = f"{readers.MAX_RECORD_BYTES / 2**20:g} MiB"
    return BadRecord("too long", f"the document is longer than {limit}: {remedy}")
