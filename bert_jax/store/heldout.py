"""Chooses the text that is set aside for evaluation."""

import re
from collections.abc import Container, Iterable
from fractions import Fraction
from typing import NamedTuple

from bert_jax.base.errors import UserError
from bert_jax.base.hashes import stable_hash
from bert_jax.text.corpus import Document
from bert_jax.text.guess_format import SENTENCE_END

# The end of a document that is held out has at least this many characters, or a quarter of them.
_MIN_CHARACTERS = 200
# Where the end of a document begins, the best first.
_GAPS = (r"\n\s*\n", r"\n", f"{SENTENCE_END}\\s+", r"\s+")
# With fewer documents, two would be too large a fraction of the text.
_MIN_DOCUMENTS = 10


class HeldOut:
    """An evenly spread fraction of the documents, chosen by their index alone.

    Consecutive documents form strata of 1 / fraction documents on average; each size is one of
    the two nearest integers. A hash picks one document of each stratum.

    Args:
      fraction: From 0 to 0.5. Its repr is taken as an exact decimal number.
    """

    def __init__(self, fraction: float):
        self._fraction = Fraction(str(float(fraction)))

    def __contains__(self, index: int) -> bool:
        fraction = self._fraction
        if not fraction:
            return False
        stratum = index * fraction.numerator // fraction.denominator
        start, end = self._start(stratum), self._start(stratum + 1)
        return index - start == stable_hash("heldout", stratum) % (end - start)

    def _start(self, stratum: int) -> int:
        """Returns stratum / fraction, rounded up."""
        return -(-stratum * self._fraction.denominator // self._fraction.numerator)


def is_held_out_by_id(document: Document, fraction: float) -> bool:
    """Returns whether a document is held out, which depends on its id alone.

    Documents that are added to the corpus therefore change nothing for the others.
    """
    if not document.id:
        raise UserError(
            f"{document.place}: with data.heldout_by=id, a document needs an id: set "
            "data.document_field to that of the ids (a dump of Wikipedia has ids; text files have "
            "none)"
        )
    return stable_hash("heldout", document.id) < fraction * 2**64


class HeldOutText(NamedTuple):
    """The text that is held out.

    Attributes:
      documents: The numbers of the documents that are held out whole.
      end_fraction: The fraction of each document that is held out at its end.
      description: A sentence for the user if the choice is not `HeldOut`, else "".
    """

    documents: Container[int]
    end_fraction: float = 0.0
    description: str = ""

    def divide(self, number: int, document: Document) -> list[Document]:
        """Returns the document, or its beginning and end; what is held out has `is_heldout`."""
        end = _end(document, self.end_fraction) if self.end_fraction else ""
        if not end:
            return [document._replace(is_heldout=number in self.documents)]
        begin = document.text[: -len(end)]
        line = document.line + begin.count("\n")
        return [
            document._replace(text=begin),
            document._replace(text=end, line=line, is_heldout=True),
        ]


def choose(sizes: Iterable[int], fraction: float) -> HeldOutText:
    """Chooses the text to hold out.

    These are the documents of `HeldOut` if the corpus is large enough for two of them. Otherwise
    it is the end of each document, or two of medium length if the documents are many and short.

    Args:
      sizes: The numbers of characters of the documents of the corpus, in order; they are read
        until two documents are chosen.
    """
    chosen, num_chosen, read = HeldOut(fraction), 0, []
    if not fraction:
        return HeldOutText(chosen)
    for index, size in enumerate(sizes):
        read.append(size)
        num_chosen += index in chosen
        if num_chosen == 2:
            return HeldOutText(chosen)
    sizes, number = read, len(read)
    reason = f"data.heldout_fraction={fraction:g} of {number} documents is fewer than two"
    if number >= _MIN_DOCUMENTS and fraction * sum(sizes) / number < _MIN_CHARACTERS:
        middle = sorted(range(number), key=sizes.__getitem__)[number // 2 - 1 : number // 2 + 1]
        characters = sum(sizes[index] for index in middle)
        what = f"2 of the {number} documents ({characters:,} characters)"
        return HeldOutText(middle, 0.0, f"held out: {what}; {reason}")
    characters = round(sum(_end_size(size, fraction) for size in sizes))
    what = f"the end of each document (about {characters:,} characters in all)"
    return HeldOutText((), fraction, f"held out: {what}; {reason}")


def _end_size(size: int, fraction: float) -> float:
    return max(fraction * size, min(_MIN_CHARACTERS, size / 4))


def _end(document: Document, fraction: float) -> str:
    """Returns the end of a document that is held out; empty if it cannot be divided.

    It begins after a blank line, else at a line, a sentence or a word, whichever exists within a
    factor of two of the wanted size; in long text without any of these, anywhere.
    """
    text, size = document.text, len(document.text.rstrip())
    wanted = _end_size(size, fraction)
    for gap in ("\n", r"\s+") if document.is_split else _GAPS:
        gaps = re.compile(gap).finditer(text, int(size - 2 * wanted), int(size - wanted / 2))
        if starts := [match.end() for match in gaps]:
            return text[min(starts, key=lambda start: abs(size - wanted - start)) :]
    return text[int(size - wanted) :] if wanted >= _MIN_CHARACTERS else ""
