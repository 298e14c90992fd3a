"""Splits text into sentences."""

import re
from collections.abc import Iterator

from sentencex import segment

# The languages for which sentencex has rules.
LANGUAGES = (
    "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk"
).split()
# A blank line may contain spaces.
_PARAGRAPH_BREAK = re.compile(r"\n\s*\n")
# The most characters that sentencex is given at once: its time can grow with the square of them.
_MAX_CHARACTERS = 2**13
# sentencex does not split a paragraph that begins with "(2)", "(b)" or a bullet.
_ITEM_MARK = re.compile(r"(?:\(\w{1,4}\)|[•‣◦·]) +")
_GREEK = re.compile(r"[\u0370-\u03ff\u1f00-\u1fff]")


def split_sentences(text: str, language: str = "") -> list[str]:
    """Splits a document into sentences, in order and without losing words.

    A blank line always ends a sentence. A single line break is a space.

    Args:
      language: The code of the language, one of `LANGUAGES`. For another code, sentencex takes the
        rules of a related language or of English. If empty, Greek paragraphs get the rules of
        Greek, whose question mark is ";", and all others those of English, which know the sentence
        ends of all scripts.

    Returns:
      The sentences. None is empty, and each run of white space becomes one space.
    """
    sentences = []
    for paragraph in _PARAGRAPH_BREAK.split(text):
        if flat := _flat(paragraph):
            sentences += _split_paragraph(flat, language or _language_of(flat))
    return sentences


def _flat(text: str) -> str:
    """Returns a text in which each run of white space is one space."""
    line = text.replace("\n", " ").strip()
    # The space is the only white space that is printable.
    return line if line.isprintable() and "  " not in line else " ".join(text.split())


def _language_of(text: str) -> str:
    may_be_greek = not text.isascii() and ";" in text
    return "el" if may_be_greek and 2 * len(_GREEK.findall(text)) > len(text) else "en"


def _split_paragraph(text: str, language: str) -> list[str]:
    item = _ITEM_MARK.match(text)
    mark, rest = (item[0], text[item.end() :]) if item else ("", text)
    sentences = [s for s in map(str.strip, _segments(rest, language)) if s]
    if not sentences:
        return [text]
    return [mark + sentences[0], *sentences[1:]]


def _segments(text: str, language: str) -> Iterator[str]:
    """Yields the sentences of a paragraph with the spaces between them.

    A long paragraph is split in pieces. The last sentence of a piece may go on after it: it is
    split again with what follows, or if it is long itself, joined to the next.
    """
    at, begun = 0, []
    while at < len(text):
        end = len(text)
        if end - at > _MAX_CHARACTERS:
            end = text.rfind(" ", at, at + _MAX_CHARACTERS) + 1 or at + _MAX_CHARACTERS
        *whole, last = segment(language, text[at:end])
        if whole:
            yield "".join([*begun, whole[0]])
            yield from whole[1:]
            begun = []
        if whole and end < len(text) and len(last) < _MAX_CHARACTERS / 2:
            end -= len(last)
        else:
            begun.append(last)
        at = end
    yield "".join(begun)
