"""Reads text files line by line: encodings, compression and JSON lines."""

import bz2
import codecs
import contextlib
import gzip
import io
import itertools
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.text.bad_records import BadRecord

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# The most bytes of one document or line. Each is held in memory; hardly any real text is longer.
MAX_RECORD_BYTES = 2**26
# The reason of a `BadRecord` that is not in the encoding of its file.
INVALID_UTF8 = "invalid UTF-8"
# Long lines are skipped, and encodings are tried, in blocks of this size.
_BLOCK_BYTES = 2**20
# The rest of a block is copied after each stream in it, and streams may be short.
_PACKED_BYTES = 2**14
# zstd's default limit of the window is 128 MiB; text archives often have larger ones.
_ZSTD_OPTIONS = {zstd.DecompressionParameter.window_log_max: 31}
# The encodings that byte order marks name. The mark of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# The beginning of a file that is a JSON array, or JSON objects over several lines.
_JSON_VALUES = re.compile(rb"(\xef\xbb\xbf)?\s*(\[|\{\s*\n)")
_JSON_SEPARATORS = re.compile(r"[\s,\[\]\ufeff]*")
# Readers of compressed files, by the suffix of their names.
_COMPRESSIONS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": lambda stored: gzip.GzipFile(fileobj=stored),
    ".bz2": lambda stored: _unpacked(stored, bz2.BZ2Decompressor),
    ".xz": lambda stored: _unpacked(stored, lzma.LZMADecompressor),
    ".zst": lambda stored: zstd.ZstdFile(stored, options=_ZSTD_OPTIONS),
}
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstd.ZstdError)


def unpacked_streams(
    stored: BinaryIO, new_unpacker: Callable[[], Any]
) -> Iterator[tuple[int, bytes]]:
    """Yields blocks of the content of a compressed file, each with the first byte of its stream.

    A file may have several streams, and zeros after each, with which some tools fill a block.
    `bz2.BZ2File` and `lzma.LZMAFile` would ignore everything after a stream that does not begin
    another one, such as a stream whose header is damaged.

    Args:
      stored: The file, at the beginning of a stream.
      new_unpacker: `bz2.BZ2Decompressor` or another class with its methods.

    Raises:
      EOFError: The last stream is not complete. The unpacker raises other errors.
    """
    packed = stored.read(_PACKED_BYTES)
    while True:
        start, unpacker = stored.tell() - len(packed), new_unpacker()
        while not unpacker.eof:
            if unpacker.needs_input and not packed:
                packed = stored.read(_PACKED_BYTES)
                if not packed:
                    raise EOFError
            content, packed = unpacker.decompress(packed, _BLOCK_BYTES), b""
            yield start, content
        packed = unpacker.unused_data
        while not (packed := packed.lstrip(b"\0")):
            if not (packed := stored.read(_PACKED_BYTES)):
                return


def _unpacked(stored: BinaryIO, new_unpacker: Callable[[], Any]) -> BinaryIO:
    blocks = (content for _, content in unpacked_streams(stored, new_unpacker) if content)
    return io.BufferedReader(_Blocks(blocks), _BLOCK_BYTES)


class _Blocks(io.RawIOBase):
    """A file with the content of an iterator, none of whose blocks is empty."""

    def __init__(self, blocks: Iterator[bytes]):
        self._blocks, self._rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        self._rest = self._rest or memoryview(next(self._blocks, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


class _AsUtf8(io.RawIOBase):
    """Converts a file of another encoding to UTF-8 while it is read."""

    def __init__(self, stream: BinaryIO, encoding: str):
        self._text = io.TextIOWrapper(stream, encoding, newline="")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        # A character has at most four bytes in UTF-8.
        content = self._text.read(len(buffer) // 4).encode()
        buffer[: len(content)] = content
        return len(content)


def without_compression(name: str) -> str:
    """Returns the name of a file without the suffix of a compression, in lower case."""
    name = name.lower()
    return next((name.removesuffix(end) for end in _COMPRESSIONS if name.endswith(end)), name)


@contextlib.contextmanager
def open_text(
    path: Path | epath.Path, encoding: str = "utf-8"
) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Opens a file for reading; unpacks it if its name ends in .gz, .bz2, .xz or .zst.

    Args:
      path: The file.
      encoding: Its encoding, or several separated by commas: the first in which the whole file is
        valid is used. A byte order mark in the file takes precedence.

    Yields:
      The stored file, whose `tell` gives the progress, and its unpacked content in UTF-8.

    Raises:
      UserError: The file is damaged, or is not in this encoding.
    """
    with files.open_input(path) as stored:
        suffix = path.suffix.lower()
        try:
            unpacked = _COMPRESSIONS.get(suffix, lambda stored: stored)
            encoding = _encoding_of(stored, unpacked, encoding)
            # A pipe cannot go back, and has not been read: `peek` keeps what it shows.
            if stored.seekable():
                stored.seek(0)
            stream = unpacked(stored)
            if encoding != "utf-8":
                stream = io.BufferedReader(_AsUtf8(stream, encoding), _BLOCK_BYTES)
            yield stored, stream
        except UnicodeError:
            raise UserError(f"{path} is not valid {encoding} (config.data.encoding)") from None
        except _DAMAGED as error:
            raise _incomplete(path) from error
        except OSError as error:
            # bz2 has no exception of its own.
            if suffix == ".bz2" and error.errno is None:
                raise _incomplete(path) from error
            raise


def _encoding_of(stored: BinaryIO, unpacked: Callable[[BinaryIO], BinaryIO], encodings: str) -> str:
    """Returns the encoding of a file at its beginning; see `open_text`."""
    start = unpacked(stored).peek(4)
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            return encoding
    *candidates, last = encodings.split(",")
    for encoding in candidates:
        stored.seek(0)
        stream, decoder = unpacked(stored), codecs.getincrementaldecoder(encoding)()
        try:
            while block := stream.read(_BLOCK_BYTES):
                decoder.decode(block)
            decoder.decode(b"", final=True)
            return encoding
        except UnicodeError:
            continue
    return last


def _incomplete(path: Path | epath.Path) -> UserError:
    return UserError(f"{path} is not a complete {path.suffix} file")


class Line(NamedTuple):
    """One line of a file.

    Attributes:
      number: The number of the line, from 1.
      content: The bytes of the line; None if it is longer than MAX_RECORD_BYTES.
    """

    number: int
    content: bytes | None

    def text(self) -> str:
        """Returns the line with its end.

        Raises:
          BadRecord: The line is too long, or not UTF-8.
        """
        if self.content is None:
            raise too_long("split it over several lines")
        try:
            return self.content.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise BadRecord(INVALID_UTF8, "not valid UTF-8") from None

    def parse(self) -> dict[str, Any]:
        """Returns the object on a line of JSON.

        Raises:
          BadRecord: The line is too long, not UTF-8, or not a JSON object.
        """
        try:
            values = json.loads(self.text())
        except (ValueError, RecursionError) as error:
            raise BadRecord("broken JSON", f"not a JSON object: {error}") from None
        if not isinstance(values, dict):
            raise BadRecord("broken JSON", "not a JSON object")
        return values


def text_lines(stream: BinaryIO, start: int = 0, stop: int | None = None) -> Iterator[Line]:
    """Yields the lines of a file that begin in a range of bytes.

    Args:
      stream: The file at its beginning; seekable if `start` is not 0.
      start: The first byte. From the middle of a file, lines are numbered from 2: the line before
        them is not read as a whole.
      stop: The byte after the last; None for the end of the file.
    """
    if start:
        # If the byte before the range is the end of a line, the next line begins in the range.
        stream.seek(start - 1)
        read_line(stream, MAX_RECORD_BYTES)
    for number in itertools.count(2 if start else 1):
        if stop is not None and stream.tell() >= stop:
            return
        line = read_line(stream, MAX_RECORD_BYTES)
        if line == b"":
            return
        yield Line(number, line)


def json_lines(stream: BinaryIO, start: int = 0, stop: int | None = None) -> Iterator[Line]:
    """Yields the lines of `text_lines` that are not blank.

    If the file holds a JSON array, or objects over several lines, its values are the lines. Such a
    file is read from the beginning and as a whole.
    """
    lines = text_lines(stream, start, stop)
    filled = (line for line in lines if line.content is None or line.content.strip())
    for first in itertools.islice(filled, 1):
        if start or first.content is None or not is_multiline_json(first.content):
            yield first
        else:
            filled = _json_values(first, stream)
    yield from filled


def is_multiline_json(start: bytes) -> bool:
    """Returns whether a file that begins so is a JSON array or has objects over several lines."""
    return bool(_JSON_VALUES.match(start))


def _json_values(first: Line, stream: BinaryIO) -> Iterator[Line]:
    """Yields the values of a file as if each was on a line; see `json_lines`."""
    content = first.content + stream.read(MAX_RECORD_BYTES)
    if len(content) > MAX_RECORD_BYTES:
        yield first._replace(content=None)
        return
    # A text that is not UTF-8 is refused where the line is parsed.
    text = content.decode(errors="surrogateescape")
    number, end, depth = first.number, 0, 0
    while True:
        separators = _JSON_SEPARATORS.match(text, end)
        depth += separators[0].count("[") - separators[0].count("]")
        number, start = number + separators[0].count("\n"), separators.end()
        if start == len(text):
            break
        try:
            end = json.JSONDecoder().raw_decode(text, start)[1]
        except (ValueError, RecursionError):
            end, depth = len(text), 0
        yield Line(number, text[start:end].encode(errors="surrogateescape"))
        number += text.count("\n", start, end)
    if depth > 0:
        # The end of the array is missing. An empty line is not an object, and so it is refused.
        yield Line(number, b"")


def read_line(stream: BinaryIO, max_bytes: int) -> bytes | None:
    """Returns the next line, or b"" at the end of the file.

    Skips a line longer than `max_bytes` and returns None.
    """
    line = stream.readline(max_bytes + 1)
    if len(line) <= max_bytes:
        return line
    while line and not line.endswith(b"\n"):
        line = stream.readline(_BLOCK_BYTES)
    return None


def read_text(path: Path | epath.Path) -> str:
    """Returns the text of a whole file without its byte order mark.

    Raises:
      UserError: The file cannot be read, or is not UTF-8; the message names the line.
    """
    try:
        with open_text(path) as (_, stream):
            content = stream.read()
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not valid UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or 'no such file'}") from None
    # Some old files end their lines with "\r" alone.
    return text if "\n" in text else text.replace("\r", "\n")


def is_unicode(text: str) -> bool:
    """Returns whether a text can be encoded as UTF-8; lone surrogates ("\\ud800") cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_unicode(text: str, name: str) -> None:
    """Raises BadRecord if a text cannot be encoded as UTF-8."""
    if not is_unicode(text):
        raise BadRecord("lone surrogate", f"{name} has a lone surrogate")


def too_long(remedy: str) -> BadRecord:
    """Returns the error of a document longer than MAX_RECORD_BYTES."""
    limit = f"{MAX_RECORD_BYTES / 2**20:g} MiB"
    return BadRecord("too long", f"the document is longer than {limit}: {remedy}")
