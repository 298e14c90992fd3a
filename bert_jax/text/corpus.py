"""Reads a corpus as a stream of documents: files, the built-in corpus, TensorFlow Datasets."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from etils import epath

from bert_jax.base.errors import UserError
from bert_jax.text import proteins, sequences, text_documents, tfds, wikipedia
from bert_jax.text.bad_records import INVALID_UTF8, BadRecord, BadRecords
from bert_jax.text.document import Document, checked
from bert_jax.text.guess_format import FormatGuess, format_of
from bert_jax.text.named_sources import language_of
from bert_jax.text.readers import is_multiline_json, open_text, without_compression
from bert_jax.text.row_documents import ROW_FORMATS, Rows, read_row_documents
from bert_jax.text.sources import (
    Piece,
    Place,
    Source,
    cut,
    find_sources,
    is_built_in,
    source_name,
    source_path,
)
from bert_jax.text.tables import MISSING

# The readers by format. Those of tables and of dumps of Wikipedia take other arguments.
_READERS = {
    "documents": text_documents.read_whole,
    "sentences": text_documents.read_sentences,
    "lines": sequences.read_lines,
    "fasta": sequences.read_fasta,
}
# What else to do about a bad document, by reason.
_ADVICE = {
    INVALID_UTF8: "set data.encoding if the file has another encoding, such as latin-1, or to "
    "utf-8,latin-1 if only some files do",
    MISSING: "set data.text_field to the column or field of the texts, and data.document_field, if "
    "it is set, to that of the names of documents",
}
_PEEK_BYTES = 1000
# Progress is counted in steps of this size.
_ADVANCE_BYTES = 10**5
_CUT_BY_LINES = ("jsonl", "sentences", "lines", "fasta")
# The formats whose files have their own encoding.
_OWN_ENCODING = ("parquet", "arrow", "wikipedia")


class Corpus:
    """The documents of `data.input`.

    Args:
      document_field, table_rows: See `Rows`.
      characters_apart: Whether spaces are put between the characters; see `sequences.apart`.
      encoding: The encoding of the files, as Python names it, or several; see `open_text`.
        Parquet has its own.

    Attributes:
      guesses: The guessed format of each file that was read with format="auto", by path.
      bad: The bad documents of the current pass over the corpus.
      advance: Called with the megabytes that were read since the last call.
    """

    def __init__(
        self,
        inputs: Sequence[str] | str,
        *,
        format: str = "auto",
        text_field: str = "text",
        document_field: str = "",
        table_rows: str = "documents",
        characters_apart: bool = False,
        encoding: str = "utf-8",
        bad_documents: str = "refuse",
        sources: list[Source] | None = None,
    ):
        self._format, self._policy = format, bad_documents
        self._rows = Rows(text_field, document_field, table_rows == "sentences")
        self._characters_apart = characters_apart
        self._encoding = encoding
        self.sources = find_sources(inputs, text_field) if sources is None else sources
        self.guesses: dict[str, FormatGuess] = {}
        self.advance: Callable[[float], None] = lambda megabytes: None
        self._start()

    def fetch(self) -> float | None:
        """Downloads missing data sets; returns the size in megabytes if there is none."""
        names = [source["tfds"] for source in self.sources if "tfds" in source]
        for name in names:
            tfds.open_builder(name).download_and_prepare()
        return None if names else sum(source["bytes"] for source in self.sources) / 1e6

    def parts(self, part_bytes: int) -> list[list[Piece]]:
        return cut(self.sources, part_bytes, self._may_cut)

    def documents(self, pieces: Iterable[Piece] | None = None) -> Iterator[Document]:
        """Yields the documents of some pieces, or all documents, in order."""
        self._start()
        if pieces is None:
            pieces = map(Piece, range(len(self.sources)))
        for piece in pieces:
            source = self.sources[piece.source]
            read = self._read_tfds if "tfds" in source else self._read_file
            if source.get("path") == proteins.NAME:
                read = self._read_proteins
            name = source_name(source)
            for document in read(source, piece):
                if name:
                    document = document._replace(language=language_of(name))
                if self._characters_apart:
                    document = document._replace(text=sequences.apart(document.text))
                yield document

    def _start(self) -> None:
        self.bad = BadRecords(self._policy, "data.bad_documents", _ADVICE)

    def _may_cut(self, source: Source) -> bool:
        if source.get("path") == proteins.NAME:
            return False
        path = source_path(source)
        is_packed = without_compression(path.name) != path.name.lower()
        format = self._guess(source, path).format
        if format == "wikipedia":
            return not is_packed or path.suffix.lower() == ".bz2" and wikipedia.has_streams(path)
        if is_packed or self._rows.are_sentences and format in ROW_FORMATS:
            return False
        if format not in _CUT_BY_LINES or "," in self._encoding:
            return format == "parquet"
        with open_text(path, self._encoding) as (_, stream):
            is_multiline = format == "jsonl" and is_multiline_json(stream.peek(_PEEK_BYTES))
            # What is converted to UTF-8 while it is read cannot be read from the middle.
            return stream.seekable() and not is_multiline

    def _guess(self, source: Source, path: Path | epath.Path) -> FormatGuess:
        if is_built_in(source):
            return FormatGuess("documents", "")
        if self._format != "auto":
            return FormatGuess(self._format, "")
        return format_of(path, self._encoding)

    def _read_file(self, source: Source, piece: Piece) -> Iterator[Document]:
        path = source_path(source)
        guess = self._guess(source, path)
        if guess.reason:
            self.guesses[str(path)] = guess
        encoding = "utf-8" if guess.format in _OWN_ENCODING else self._encoding
        with open_text(path, encoding) as (stored, stream):
            size = stored.seek(0, os.SEEK_END)
            if size != source["bytes"]:
                raise UserError(
                    f"{path} had {source['bytes']:,} bytes when the input was listed and has "
                    f"{size:,} now: start again when it is complete"
                )
            stored.seek(0)
            if guess.format == "wikipedia":
                found = text_documents.read_articles(path, stored, stream, piece, self.bad)
            elif guess.format in _READERS:
                found = _READERS[guess.format](str(path), stream, piece, self.bad)
            else:
                found = read_row_documents(
                    guess.format, str(path), stream, piece, self._rows, self.bad
                )
            is_empty, num_bad, read = True, self.bad.dropped.total(), piece.start
            for document in found:
                is_empty = False
                if (now := stored.tell()) - read >= _ADVANCE_BYTES:
                    self.advance((now - read) / 1e6)
                    read = now
                yield document
            if piece.stop is None and is_empty and num_bad == self.bad.dropped.total():
                self.bad.add(BadRecord("empty", "the file has no document"), str(path))
            # The file is read in blocks, and perhaps beyond the piece.
            self.advance(((size if piece.stop is None else piece.stop) - read) / 1e6)

    def _read_tfds(self, source: Source, _: Piece) -> Iterator[Document]:
        name = source["tfds"]
        examples = tfds.texts(tfds.open_builder(name), name, source["field"])
        for number, content in enumerate(examples, 1):
            self.advance(len(content) / 1e6)
            with self.bad.catching(Place(name, number)):
                yield Document(name, number, checked(content.decode()), is_split=False)

    def _read_proteins(self, source: Source, _: Piece) -> Iterator[Document]:
        for number, sequence in enumerate(proteins.proteins(), 1):
            self.advance(len(sequence) / 1e6)
            yield Document(proteins.NAME, number, sequences.apart(sequence), is_split=True)
