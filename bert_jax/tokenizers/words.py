"""Splits text into words by BERT's rules.

The rules are those of google-research/bert's tokenization.py. Control characters are
dropped, every CJK character is a word (cased and uncased alike), lower-casing strips
accents, and punctuation is split off. As in the original, Python's Unicode tables apply:
newer characters count as unassigned and are dropped.

With lower-casing, the words are those of `transformers`' slow `BertTokenizer` for every text. Other
tokenizers differ in rare characters, as tests/tokenizers/test_parity.py checks:

* Without lower-casing, the slow `BertTokenizer` composes the text (NFC): "e" with a combining
  accent becomes "é".
* The original under Python 3 lower-cases whole words: a capital sigma at the end of a word becomes
  a final sigma. All other tokenizers lower-case each character by itself.
* The `tokenizers` library (`transformers`' fast tokenizers) uses the tables of Unicode 8.
"""

import functools
import re
import unicodedata
from collections import Counter

_CJK = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


# Latin letters, spacing modifiers and the accents of Latin, Greek and Cyrillic come before.
_OF_OTHER_SCRIPTS = re.compile("[^\0-\u036f]")


def num_lost(text: str) -> int:
    """Returns how many characters lose a vowel sign or another mark to lower-casing.

    Many scripts, such as Devanagari and Thai, write vowels as marks, which are stripped like
    accents.
    """
    counts = Counter(() if text.isascii() else _OF_OTHER_SCRIPTS.findall(text))
    return sum(number for character, number in counts.items() if _is_lost(character))


@functools.cache
def _is_lost(character: str) -> bool:
    parts = unicodedata.normalize("NFD", character)
    # U+0300 to U+036F are the accents of Latin, Greek and Cyrillic.
    return any(unicodedata.category(c) == "Mn" and not "\u0300" <= c < "\u0370" for c in parts)


class WordSplitter:
    """Splits text into words; `lowercase` strips accents too."""

    def __init__(self, lowercase: bool):
        self._lowercase = lowercase
        self._table = _CharacterTable(lowercase)

    def split(self, text: str) -> list[str]:
        return self._spaced(text).split()

    def spaced_aligned(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """Returns a text with spaces between its words, and the span of each of its characters.

        The span of a character in `text` includes the stripped accents that follow it.
        """
        spans: list[tuple[int, int]] = []
        for index, character in enumerate(text):
            spaced = self._spaced(character)
            if not spaced and spans and unicodedata.category(character) == "Mn":
                spans[-1] = spans[-1][0], index + 1
            spans += [(index, index + 1)] * len(spaced)
        return self._spaced(text), spans

    def _spaced(self, text: str) -> str:
        if self._lowercase:
            text = unicodedata.normalize("NFD", text)
        return text.translate(self._table)


class _CharacterTable(dict):
    """A cache for `str.translate`: the replacement of each code point.

    After NFD, every rule depends on one character only. This is four times as fast as the
    `tokenizers` library.
    """

    def __init__(self, lowercase: bool):
        super().__init__()
        self._lowercase = lowercase

    def __missing__(self, code: int) -> str:
        text = self[code] = self._replacement(chr(code))
        return text

    def _replacement(self, character: str) -> str:
        category = unicodedata.category(character)
        if character in "\t\n\r" or category == "Zs":
            return " "
        if category[0] == "C" or character == "\ufffd":
            return ""
        if any(first <= ord(character) <= last for first, last in _CJK):
            return f" {character} "
        if self._lowercase and category == "Mn":
            return ""
        # ASCII symbols such as $ and ^ count as punctuation.
        if category[0] == "P" or (category[0] == "S" and character.isascii()):
            return f" {character} "
        return character.lower() if self._lowercase else character
