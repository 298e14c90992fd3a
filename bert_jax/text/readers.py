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
# The reason of a `BadRecord` that is no object of JSON.
BROKEN_JSON = "broken JSON"
# Encodings are tried in blocks of this size.
_BLOCK_BYTES = 2**20
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
# The beginnings of zip, RAR, 7-Zip, gzip, bzip2, xz and zstd. A tar names itself in its header.
_PACKED = re.compile(
    rb"PK\x03\x04|Rar!\x1a|7z\xbc\xaf|\x1f\x8b\x08|BZh[1-9]1AY|\xfd7zXZ|\x28\xb5\x2f\xfd|.{257}ustar",
    re.DOTALL,
)
_PEEK_BYTES = 512
# The beginning of a file that is a JSON array, or a JSON object over several lines.
_JSON_VALUE = re.compile(rb"(\xef\xbb\xbf)?\s*(\[|\{\s*\n)")
# The rest of a block is copied after each stream in it, and streams may be short.
_PACKED_BYTES = 2**14


class Streams(io.RawIOBase):
    """The content of a file of bz2 or xz streams, with zeros between them or not.

    Each read returns content of one stream.

    `bz2.BZ2File` and `lzma.LZMAFile` end without an error where a stream does not begin another
    one, such as a stream whose header is damaged.

    Attributes:
      start: The first byte of the stream that was read last.
    """

    def __init__(self, stored: BinaryIO, new_unpacker: Callable[[], Any]):
        self._stored, self._new_unpacker, self.start = stored, new_unpacker, stored.tell()
        self._unpacker, self._packed = new_unpacker(), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while True:
            if self._unpacker.eof:
                packed = self._unpacker.unused_data
                while not (packed := packed.lstrip(b"\0")):
                    if not (packed := self._stored.read(_PACKED_BYTES)):
                        return 0
                self._unpacker, self._packed = self._new_unpacker(), packed
                self.start = self._stored.tell() - len(packed)
            if self._unpacker.needs_input and not self._packed:
                self._packed = self._stored.read(_PACKED_BYTES)
                if not self._packed:
                    raise EOFError("the last stream is not complete")
            content = self._unpacker.decompress(self._packed, len(buffer))
            self._packed = b""
            if content:
                buffer[: len(content)] = content
                return len(content)


# Readers of compressed files, by the suffix of their names.
COMPRESSIONS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": lambda stored: gzip.GzipFile(fileobj=stored),
    ".bz2": lambda stored: _buffered(Streams(stored, bz2.BZ2Decompressor)),
    ".xz": lambda stored: _buffered(Streams(stored, lzma.LZMADecompressor)),
    ".zst": lambda stored: zstd.ZstdFile(stored, options=_ZSTD_OPTIONS),
}


def _buffered(raw: io.RawIOBase) -> io.BufferedReader:
    return io.BufferedReader(raw, _BLOCK_BYTES)


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
    return next((name.removesuffix(end) for end in COMPRESSIONS if name.endswith(end)), name)


def suffix_of(path: Path | epath.Path) -> str:
    """Returns the suffix of a file without that of a compression, such as .jsonl of a.jsonl.gz."""
    return Path(without_compression(path.name)).suffix


@contextlib.contextmanager
def open_text(
    path: Path | epath.Path, encoding: str = "utf-8"
) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Opens a file for reading; unpacks it if its name ends in .gz, .bz2, .xz or .zst.

    Errors of the block name the file; see `files.naming`.

    Args:
      encoding: Its encoding, or several separated by commas: the first in which the whole file is
        valid is used. A byte order mark in the file takes precedence.

    Yields:
      The stored file, whose `tell` gives the progress, and its unpacked content in UTF-8.
    """
    with files.open_input(path) as stored, files.naming(path):
        unpacked = COMPRESSIONS.get(path.suffix.lower(), lambda stored: stored)
        # A pipe cannot go back; `peek` keeps what it shows.
        start = unpacked(stored).peek(_PEEK_BYTES)
        if _PACKED.match(start):
            raise UserError(f"{path} is packed: unpack it, and name its files or their folder")
        encoding = _encoding_of(stored, start, unpacked, encoding)
        if stored.seekable():
            stored.seek(0)
        stream = unpacked(stored)
        if encoding != "utf-8":
            stream = _buffered(_AsUtf8(stream, encoding))
        try:
            yield stored, stream
        except UnicodeError:
            raise UserError(f"{path} is not valid {encoding} (config.data.encoding)") from None


def _encoding_of(
    stored: BinaryIO, start: bytes, unpacked: Callable[[BinaryIO], BinaryIO], encodings: str
) -> str:
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


class Line(NamedTuple):
    """One line of a file: its number, from 1, and its bytes."""

    number: int
    content: bytes

    def text(self) -> str:
        return self.content.decode("utf-8-sig" if self.number == 1 else "utf-8")

    def parse(self) -> dict[str, Any]:
        """Returns the object on a line of JSON; raises BadRecord if there is none."""
        text = self.text()
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadRecord(BROKEN_JSON, f"not a JSON object: {error}") from None
        if not isinstance(values, dict):
            raise BadRecord(BROKEN_JSON, "not a JSON object")
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
        stream.readline()
    for number in itertools.count(2 if start else 1):
        if stop is not None and stream.tell() >= stop:
            return
        line = stream.readline(MAX_RECORD_BYTES + 1)
        if len(line) > MAX_RECORD_BYTES:
            # From the middle of a file, the number is not that of the whole.
            place = "a line" if start else f"line {number}"
            raise ValueError(f"{place} is longer than {MAX_RECORD_BYTES:,} bytes")
        if not line:
            return
        yield Line(number, line)


def json_lines(stream: BinaryIO, start: int = 0, stop: int | None = None) -> Iterator[Line]:
    """Yields the lines of `text_lines` that are not blank.

    If the file holds a JSON array, its items are the lines; so is an object over several lines.
    Such a file is read from the beginning and as a whole.
    """
    filled = (line for line in text_lines(stream, start, stop) if line.content.strip())
    for line in filled:
        if start == 0 and is_multiline_json(line.content):
            content = line.content + stream.read(MAX_RECORD_BYTES)
            if len(content) > MAX_RECORD_BYTES:
                raise ValueError(
                    f"a JSON value is longer than {MAX_RECORD_BYTES:,} bytes; write one object a "
                    "line"
                )
            try:
                found = json.loads(content.decode("utf-8-sig"))
            except json.JSONDecodeError as error:
                if error.msg != "Extra data":
                    raise
                # Each line is a value of its own, and no object.
                lines = enumerate(content.split(b"\n"), line.number)
                filled = (Line(number, text) for number, text in lines if text.strip())
                break
            found = found if isinstance(found, list) else [found]
            filled = (Line(n, json.dumps(value).encode()) for n, value in enumerate(found, 1))
        else:
            yield line
        break
    yield from filled


def is_multiline_json(start: bytes) -> bool:
    """Returns whether a file that begins so is a JSON array or an object over several lines."""
    return bool(_JSON_VALUE.match(start))


def read_text(path: Path | epath.Path) -> str:
    """Returns the text of a whole file without its byte order mark."""
    with open_text(path) as (_, stream):
        content = stream.read()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise UserError(f"{path}:{line}: not valid UTF-8") from None
    # Some old files end their lines with "\r" alone.
    return text if "\n" in text else text.replace("\r", "\n")
