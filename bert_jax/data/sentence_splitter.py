"""Text to sentences.

The segmentation library was chosen by a comparison that docs/sentence_splitting.md
records.
"""

import re

from sentencex import segment

# A blank line, which may hold spaces.
_PARAGRAPH_BREAK = re.compile(r"\n\s*\n")
# "(2)", "(b)" or a bullet before a paragraph: sentencex does not split what follows.
_ITEM_MARK = re.compile(r"(?:\(\w{1,4}\)|[•‣◦·]) +")


def split_sentences(text: str) -> list[str]:
    """Splits a document into sentences, in order, without loss of words.

    A blank line always ends a sentence; a single line break is a space.

    Args:
      text: A document; paragraphs are separated by blank lines.

    Returns:
      Sentences, none empty, with runs of white space turned into single spaces.
    """
    sentences = []
    for paragraph in _PARAGRAPH_BREAK.split(text):
        flat = " ".join(paragraph.split())
        if flat:
            sentences += _split_paragraph(flat)
    return sentences


def _split_paragraph(text: str) -> list[str]:
    item = _ITEM_MARK.match(text)
    mark, rest = (item[0], text[item.end() :]) if item else ("", text)
    sentences = [s for s in map(str.strip, segment("en", rest)) if s]
    if not sentences:
        return [text]
    return [mark + sentences[0], *sentences[1:]]
