"""Guesses the format of a text file: documents, one sentence per line, JSON lines or a table."""

import re
from itertools import groupby
from pathlib import Path

from etils import epath

from bert_jax.data.sentence_splitter import split_sentences
from bert_jax.data.text_files import open_text, without_compression

# The formats that are recognized by the name of a file.
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
# The bytes of a file that are examined.
_PEEK_BYTES = 2**16
# The share of the lines in blocks that must each look like one sentence.
_SHARE = 0.8
_SENTENCE_END = re.compile(r"""[.!?;:…。！？]["'”’»)\]*_]*$""")


def is_text(name: str) -> bool:
    """Returns whether a file in a directory is read, judging by its name."""
    suffix = Path(without_compression(name)).suffix
    return not Path(name).name.startswith(".") and (suffix == ".txt" or suffix in _SUFFIXES)


def format_of(path: Path | epath.Path, encoding: str = "utf-8") -> str:
    """Guesses the format of a file, as `data.format="auto"` does.

    JSON lines and tables are recognized by their extension. Any other file is "documents"
    unless its first 64 KiB are clearly BERT's format: most lines are in blocks of several lines,
    at least four in five of these lines end like a sentence, and at least four in five are a
    single sentence. Text wrapped at a fixed width fails the test of sentence ends. Text with one
    paragraph per line fails the test of single sentences.
    """
    suffix = Path(without_compression(path.name)).suffix
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    with open_text(path, encoding) as (_, stream):
        peek = stream.read(_PEEK_BYTES)
    if len(peek) == _PEEK_BYTES:
        # The last line is probably incomplete.
        peek = peek[: peek.rfind(b"\n") + 1]
    return "sentences" if is_sentence_a_line(peek.decode(errors="replace")) else "documents"


def is_sentence_a_line(text: str) -> bool:
    """Returns whether a text looks like one sentence per line; see `format_of`."""
    lines = [line.strip() for line in text.split("\n")]
    blocks = [list(block) for filled, block in groupby(lines, bool) if filled]
    in_blocks = [line for block in blocks if len(block) > 1 for line in block]
    if not in_blocks or len(in_blocks) <= sum(len(block) == 1 for block in blocks):
        return False
    ending = sum(bool(_SENTENCE_END.search(line)) for line in in_blocks)
    single = sum(len(split_sentences(line)) == 1 for line in in_blocks)
    return min(ending, single) >= _SHARE * len(in_blocks)
