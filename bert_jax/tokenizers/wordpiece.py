"""BERT's WordPiece: splits text into words, and words into pieces by greedy longest match.

The words follow the rules of google-research/bert's tokenization.py. Control characters are
dropped, every CJK character is a word (cased and uncased alike), lower-casing strips accents, and
punctuation is split off. As in the original, Python's Unicode tables apply: newer characters count
as unassigned and are dropped.

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
from collections.abc import Sequence
from itertools import chain

import numpy as np
from etils import epath
from tokenizers import decoders, models

from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import (
    CACHE_WORDS,
    SPECIAL_TOKENS,
    SpecialTokens,
    Tokenizer,
    read_vocabulary_file,
    require_special_tokens,
    vocabulary_lines,
)

VOCABULARY_FILE = "vocab.txt"
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
# U+036F is the last of the accents of Latin, Greek and Cyrillic, which begin at U+0300.
_OTHER_SCRIPTS = re.compile("[^\0-\u036f]")


class WordPieceTokenizer(Tokenizer):
    """A WordPiece tokenizer; see `Tokenizer`. `tokens` is the vocabulary in order of ids."""

    kind = "wordpiece"

    def __init__(
        self,
        tokens: Sequence[str],
        *,
        lowercase: bool,
        max_input_chars_per_word: int,
        special_tokens: SpecialTokens = SPECIAL_TOKENS,
    ):
        options = {"lowercase": lowercase, "max_input_chars_per_word": max_input_chars_per_word}
        vocabulary = "\n".join(tokens).encode()
        by_name = {VOCABULARY_FILE: vocabulary + b"\n"}
        super().__init__(options, vocabulary, by_name, tokens, special_tokens)
        self._splitter = WordSplitter(lowercase)
        self.library_model = models.WordPiece(
            self.ids,
            unk_token=special_tokens.unk,
            max_input_chars_per_word=max_input_chars_per_word,
        )
        self._word_ids = functools.lru_cache(CACHE_WORDS)(
            lambda word: [token.id for token in self.library_model.tokenize(word)]
        )
        self._decoder = decoders.WordPiece(cleanup=True)

    def is_word_start(self, token: str) -> bool:
        return not token.startswith("##")

    def encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        split = self._splitter.split
        return [
            np.fromiter(chain.from_iterable(map(self._word_ids, split(sentence))), np.int32)
            for sentence in sentences
        ]

    def encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        spaced, character_spans = self._splitter.spaced_aligned(text)
        for word in re.finditer(r"\S+", spaced):
            first, piece_ids = word.start(), self._word_ids(word.group())
            for piece_id in piece_ids:
                length = len(self.tokens[piece_id].removeprefix("##"))
                # A single piece covers all of the word. It may be [UNK], or spell "##".
                stop = first + length if len(piece_ids) > 1 else word.end()
                spans.append((character_spans[first][0], character_spans[stop - 1][1]))
                first = stop
            ids += piece_ids
        return np.array(ids, np.int32), np.array(spans, np.int32).reshape(-1, 2)

    def decode(self, ids: Sequence[int]) -> str:
        return self._decoder.decode([self.id_to_token(int(i)) for i in ids])


def read_vocabulary(
    path: epath.PathLike, special_tokens: SpecialTokens = SPECIAL_TOKENS
) -> list[str]:
    """Reads the tokens of a vocab.txt in the order of their ids.

    Raises:
      UserError: The file cannot be read, has a blank or repeated line, or lacks a special
        token.
    """
    lines = vocabulary_lines(read_vocabulary_file(path), path)
    tokens: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        token = line.rstrip("\r")
        if not token or token in tokens:
            raise UserError(f"{path}:{number}: the token {token!r} is blank or repeated; remove it")
        tokens[token] = None
    require_special_tokens(tokens, special_tokens, path)
    return list(tokens)


class WordSplitter:
    """Splits text into words; `lowercase` strips accents too."""

    def __init__(self, lowercase: bool):
        self._lowercase = lowercase
        self._table = _CharacterTable(lowercase)

    def split(self, text: str) -> list[str]:
        return self._spaced(text).split()

    def spaced_aligned(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """Puts spaces between the words of a text, and finds the span of each character.

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


def num_lost(text: str) -> int:
    """Counts the characters that lose a vowel sign or another mark to lower-casing.

    Many scripts, such as Devanagari and Thai, write vowels as marks, which are stripped like
    accents.
    """
    counts = Counter(() if text.isascii() else _OTHER_SCRIPTS.findall(text))
    return sum(number for character, number in counts.items() if _is_lost(character))


@functools.cache
def _is_lost(character: str) -> bool:
    parts = unicodedata.normalize("NFD", character)
    return any(unicodedata.category(c) == "Mn" and not "\u0300" <= c < "\u0370" for c in parts)
