"""Guesses the format of a file: documents, a sentence per line, JSON lines, a table or a dump."""

import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from etils import epath

from bert_jax.text.readers import open_text, suffix_of, without_compression
from bert_jax.text.sentences import split_sentences
from bert_jax.text.wikipedia import DUMP

# The formats of tables, by the suffix of the file.
TABLES = {
    "tsv": "tsv",
    "csv": "csv",
    "jsonl": "jsonl",
    "json": "jsonl",
    "parquet": "parquet",
    "arrow": "arrow",
}
# The formats that are recognized by the name of a file.
_SUFFIXES = {
    **{f".{suffix}": format for suffix, format in TABLES.items()},
    ".ndjson": "jsonl",
    **dict.fromkeys((".fasta", ".fa", ".faa", ".fna"), "fasta"),
}
# The bytes of a file that are examined.
_PEEK_BYTES = 2**16
# The fraction of the lines in blocks that must each look like one sentence.
_MIN_FRACTION = 0.8
# The names of Wikimedia's dumps, such as enwiki-20260101-pages-articles1.xml-p1p41242.bz2.
_DUMP_NAME = re.compile(r"-pages-.*\.xml")
# If fewer lines have a sentence end, the text has hardly any punctuation.
_PUNCTUATED_FRACTION = 0.2
# Wrapped lines are at least this long, measured by the longest.
_WRAPPED_LENGTH = 0.75
_ENDS = ".!?;:…。．｡！？؟۔।॥։።။។៕"
_CLOSERS = "\"'”’»)\\]*_」』）】〉》"
SENTENCE_END = f"[{_ENDS}][{_CLOSERS}]*"
_LINE_END = re.compile(f"{SENTENCE_END}$")
_ANY_END = re.compile(f"{SENTENCE_END}(?= |$)")


class FormatGuess(NamedTuple):
    """The format of a file, as `data.format="auto"` decides it.

    Attributes:
      is_doubtful: Whether the file may well have another format.
    """

    format: str
    reason: str
    is_doubtful: bool = False


def is_text(name: str) -> bool:
    """Returns whether the name of a file in a directory is that of a text."""
    file = Path(without_compression(name))
    is_known = file.suffix in (".txt", *_SUFFIXES) or _DUMP_NAME.search(file.name)
    return not file.name.startswith(".") and bool(is_known)


def format_of(path: Path | epath.Path, encoding: str = "utf-8") -> FormatGuess:
    """Guesses the format of a file, as `data.format="auto"` does.

    JSON lines and tables are recognized by their extension, a dump of a wiki by its beginning, and
    any other file by its first 64 KiB; see `format_of_text`.
    """
    suffix = suffix_of(path)
    if suffix in _SUFFIXES:
        return FormatGuess(_SUFFIXES[suffix], f"its name ends in {suffix}")
    with open_text(path, encoding) as (_, stream):
        peek = stream.read(_PEEK_BYTES)
    if DUMP.match(peek):
        return FormatGuess("wikipedia", "it begins with <mediawiki>")
    if len(peek) == _PEEK_BYTES:
        # The last line is probably incomplete.
        peek = peek[: peek.rfind(b"\n") + 1]
    return format_of_text(peek.decode(errors="replace"))


def format_of_text(text: str) -> FormatGuess:
    """Decides between "documents" and "sentences", BERT's format, by the structure of a text.

    In BERT's format, lines form blocks between blank lines, and each line is one sentence. Lines
    of about the same length were wrapped at a width. If the text has punctuation, most lines end
    like a sentence, and most have no other end of a sentence. If it has none, as in Thai, several
    blocks of lines suffice, but the decision is doubtful.
    """
    lines = [line.strip() for line in text.split("\n")]
    blocks = [list(block) for filled, block in groupby(lines, bool) if filled]
    long_blocks = [block for block in blocks if len(block) > 1]
    in_blocks = [line for block in long_blocks for line in block]
    if not in_blocks or len(in_blocks) <= len(blocks) - len(long_blocks):
        return FormatGuess("documents", "most lines stand alone, as paragraphs do")

    def fraction(rule: Callable[[str], object]) -> float:
        return sum(bool(rule(line)) for line in in_blocks) / len(in_blocks)

    ending = fraction(_LINE_END.search)
    if fraction(lambda line: len(split_sentences(line)) == 1) < _MIN_FRACTION:
        return FormatGuess("documents", "many lines have several sentences")
    if ending >= _MIN_FRACTION:
        return FormatGuess("sentences", "most lines are one sentence and end like one")
    inner = sorted(len(line) for block in long_blocks for line in block[:-1])
    widest = inner[int(0.95 * len(inner))]
    is_clear = fraction(_ANY_END.search) >= _PUNCTUATED_FRACTION or len(long_blocks) == 1
    if sum(length >= _WRAPPED_LENGTH * widest for length in inner) >= _MIN_FRACTION * len(inner):
        return FormatGuess("documents", "the lines are wrapped at a width", not is_clear)
    if is_clear:
        return FormatGuess("documents", "many lines end within a sentence", ending > 0.5)
    return FormatGuess(
        "sentences",
        "lines of different lengths form blocks, and hardly any has the end of a sentence",
        is_doubtful=True,
    )
