"""Reads the articles of a MediaWiki XML dump, whole or from the middle.

A page begins with `<page>` and ends with `</page>`. Neither occurs in the text of a page, where "<"
is "&lt;", so that pages are found without reading what comes before them.
"""

import bz2
import html
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple
from xml.etree import ElementTree

from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.text import readers
from bert_jax.text.bad_records import BadRecord
from bert_jax.text.readers import open_text
from bert_jax.text.wikitext import passages

# Articles with fewer characters are dropped: they are stubs, lists or disambiguation pages.
MIN_CHARACTERS = 200
DUMP = re.compile(rb"(\xef\xbb\xbf)?\s*(<[?!][^>]*>\s*)*<mediawiki\b")
_PAGE, _END = b"<page>", b"</page>"
_MARK = re.compile(rb"</?page>")
_DUMP_END = b"</mediawiki>"
# The end of a dump is looked for in this many bytes.
_TAIL_BYTES = 64
# The description of the wiki comes first and is shorter.
_HEAD_BYTES = 2**16
_BLOCK_BYTES = 2**18
# The first bytes of each stream in a bz2 file.
_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
_STREAM_BYTES = 10
# In a file of several streams, the first ones are shorter.
_FIRST_STREAMS_BYTES = 2**21
# The numbers of the namespaces whose links are no text, and their names in every language.
_DROPPED_NAMESPACES = {b"6": ("file", "image"), b"14": ("category",)}
_NAMESPACE = re.compile(rb'<namespace key="(6|14)"[^>]*>([^<]*)<')


class Wiki(NamedTuple):
    """What the beginning of a dump says.

    Attributes:
      name: The name of its database, such as enwiki.
      language: The code of the language; empty if it is missing.
      dropped_links: See `passages`.
    """

    name: str
    language: str
    dropped_links: frozenset[str]


class Page(NamedTuple):
    """A page of a dump.

    Attributes:
      title: The title, for messages.
      text: The text passages; None if the page is no article, such as a redirect.
    """

    title: str
    number: int
    text: str | None


def read_wiki(path: Path | epath.Path) -> Wiki:
    with open_text(path) as (_, stream):
        head = stream.read(_HEAD_BYTES)
    name = re.search(rb"<dbname>(\w+)<", head)
    language = re.search(rb'<mediawiki\b[^>]*\bxml:lang="([\w-]+)"', head)
    names = {name for known in _DROPPED_NAMESPACES.values() for name in known}
    names |= {html.unescape(found[2].decode()).lower() for found in _NAMESPACE.finditer(head)}
    found = [match[1].decode() if match else "" for match in (name, language)]
    return Wiki(*found, frozenset(names))


def has_streams(path: Path | epath.Path) -> bool:
    """Returns whether a bz2 file has several streams, as Wikimedia's multistream dumps have."""
    with files.open_input(path) as stored:
        return bool(_STREAM.search(stored.read(_FIRST_STREAMS_BYTES), 1))


def raw_pages(
    path: Path | epath.Path, stored: BinaryIO, stream: BinaryIO, start: int, stop: int | None
) -> Iterator[bytes]:
    """Yields the pages that begin in a range of bytes of a file, as XML.

    A page longer than MAX_RECORD_BYTES is cut; one whose end is missing ends before the next.

    Args:
      stream: The unpacked file, if `stop` is None or the file is not compressed.
      start: The first byte. In a bz2 file, the range means the streams that begin in it.
    """
    if stop is not None and path.suffix.lower() == ".bz2":
        blocks = _unpacked(stored, start, stop)
    else:
        blocks = _blocks(stream, start, stop)
    # Pages are searched for from `at` on, and those that begin before `stop_at` are in the range.
    content, at, stop_at = b"", 0, 0
    for block, is_in_range in blocks:
        read = min(at, max(0, len(content) - _TAIL_BYTES))
        content, at, stop_at = content[read:] + block, at - read, stop_at - read
        if is_in_range:
            stop_at += len(block)
        while (begin := content.find(_PAGE, at)) >= 0:
            if begin >= stop_at:
                return
            mark = _MARK.search(content, begin + len(_PAGE))
            if mark is None and len(content) - begin <= readers.MAX_RECORD_BYTES:
                at = begin
                break
            if mark is None:
                at = len(content)
            else:
                at = mark.end() if mark[0] == _END else mark.start()
            yield content[begin:at]
        else:
            # The end may be the beginning of a mark.
            at = max(at, len(content) - _TAIL_BYTES)
            if at >= stop_at:
                return
    # A shorter range is checked with the one before it, which is read to the end of the dump.
    if len(content) >= _TAIL_BYTES and _DUMP_END not in content:
        raise UserError(f"{path} is not a complete dump: it ends without </mediawiki>")
    if content.startswith(_PAGE, at):
        yield content[at:]


def read_page(content: bytes, wiki: Wiki) -> Page:
    """Returns a page, given as XML; raises BadRecord if it is not valid."""
    try:
        page = ElementTree.fromstring(content)
        number = int(page.findtext("id", "0"))
    except (ElementTree.ParseError, ValueError) as error:
        title = re.search(rb"<title>([^<]*)", content)
        name = html.unescape(title[1].decode(errors="replace")) if title else ""
        raise BadRecord("broken page", f"the page {name!r} is not valid XML: {error}") from None
    title, text = page.findtext("title", ""), None
    if page.findtext("ns", "0") == "0" and page.find("redirect") is None:
        text = passages(page.findtext("revision[last()]/text", ""), wiki.dropped_links)
    return Page(title, number, text)


def _blocks(stream: BinaryIO, start: int, stop: int | None) -> Iterator[tuple[bytes, bool]]:
    """Yields the content of a file from `start`, with whether it is before `stop`."""
    if start:
        stream.seek(start)
    left = math.inf if stop is None else stop - start
    while block := stream.read(min(_BLOCK_BYTES, left) if left else _BLOCK_BYTES):
        yield block, left > 0
        left = max(0, left - len(block))


def _unpacked(stored: BinaryIO, start: int, stop: int) -> Iterator[tuple[bytes, bool]]:
    """Yields the content of the bz2 streams from `start`, with whether they begin before `stop`."""
    at, found = start, None
    while at < stop and not found:
        stored.seek(at)
        found = _STREAM.search(stored.read(_BLOCK_BYTES + _STREAM_BYTES - 1))
        at += found.start() if found else _BLOCK_BYTES
    if at >= stop:
        return
    stored.seek(at)
    streams = readers.Streams(stored, bz2.BZ2Decompressor)
    while content := streams.read(_BLOCK_BYTES):
        yield content, streams.start < stop
