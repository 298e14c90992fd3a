"""Reads text files line by line: UTF-8, gzip and JSON lines."""

import contextlib
import gzip
import itertools
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from bert_jax import files
from bert_jax.data.bad_records import BadRecord
from bert_jax.errors import UserError

# The most bytes of one document or line. Each is held in memory; hardly any real text is longer.
MAX_RECORD_BYTES = 2**26
# The rest of a line that is too long is skipped in blocks of this size.
_BLOCK_BYTES = 2**20


@contextlib.contextmanager
def open_text(path: Path | epath.Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Opens a file for reading and unpacks it if its name ends in .gz.

    Yields:
      The stored file, whose `tell` gives the progress, and its unpacked content.

    Raises:
      UserError: The file is not a complete gzip file.
    """
    with files.open_input(path) as stored:
        try:
            yield stored, gzip.GzipFile(fileobj=stored) if path.suffix == ".gz" else stored
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{path} is not a complete gzip file: {error}") from None


class JsonLine(NamedTuple):
    """One line of a JSON-lines file.

    Attributes:
      number: The number of the line, from 1.
      content: The bytes of the line; None if it is longer than MAX_RECORD_BYTES.
    """

    number: int
    content: bytes | None

    def parse(self) -> dict[str, Any]:
        """Returns the object on the line.

        Raises:
          BadRecord: The line is too long, not UTF-8, or not a JSON object.
        """
        if self.content is None:
            limit = f"{MAX_RECORD_BYTES / 2**20:g} MiB"
            detail = f"the document is longer than {limit}: split it over several lines"
            raise BadRecord("too long", detail)
        try:
            text = self.content.decode("utf-8-sig" if self.number == 1 else "utf-8")
            values = json.loads(text)
        except UnicodeDecodeError:
            raise BadRecord("invalid UTF-8", "not valid UTF-8") from None
        except (ValueError, RecursionError) as error:
            raise BadRecord("broken JSON", f"not a JSON object: {error}") from None
        if not isinstance(values, dict):
            raise BadRecord("broken JSON", "not a JSON object")
        return values


def json_lines(stream: BinaryIO) -> Iterator[JsonLine]:
    """Yields the lines of a JSON-lines file that are not blank."""
    for number in itertools.count(1):
        line = read_line(stream, MAX_RECORD_BYTES)
        if line == b"":
            return
        if line is None or line.strip():
            yield JsonLine(number, line)


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
            text = stream.read().decode("utf-8-sig")
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
        raise BadRecord("invalid UTF-8", f"{name} has a lone surrogate")
