"""BERT's WordPiece: splits text into words, and words into pieces by greedy longest match.

The words follow the rules of google-research/bert's tokenization.py. Control characters are
dropped, every CJK character is a word (cased and uncased alike), lower-casing strips accents, and
punctuation is split off. The Unicode tables are those of the `tokenizers` library, so that ids do
not depend on the version of Python. Characters that they lack, such as new emoji, are kept.

The words are those of `transformers`' fast tokenizers. Others differ in rare characters, as
tests/tokenizers/test_parity.py checks:

* Without lower-casing, the slow `BertTokenizer` composes the text (NFC): "e" with a combining
  accent becomes "é".
* The original under Python 3 lower-cases whole words: a capital sigma at the end of a word becomes
  a final sigma. All other tokenizers lower-case each character by itself.
* The original and the slow `BertTokenizer` use the Unicode tables of their Python, and drop
  characters that these lack.
"""

import re
import string
import unicodedata
from collections.abc import Sequence

import numpy as np
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import Kind, Tokenizer, WordCache
from bert_jax.tokenizers.special_tokens import SPECIAL_TOKENS, SpecialTokens
from bert_jax.tokenizers.vocabularies import require_special_tokens, tokens_by_id, vocabulary_lines

VOCABULARY_FILE = "vocab.txt"
_ASCII_PUNCTUATION = [mark.encode() for mark in string.punctuation]


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
        # Joining bytes is twice as fast as collecting ids.
        self._word_ids = WordCache(self._bytes_of_ids)
        self._decoder = decoders.WordPiece(cleanup=True)

    @property
    def normalizer(self) -> normalizers.Normalizer:
        # With None, accents are stripped if `lowercase` is set.
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=None,
            lowercase=self.options["lowercase"],
        )

    def words(self, text: str) -> list[str]:
        longest = self.options["max_input_chars_per_word"]
        return [word for word in self._splitter.split(text) if len(word) <= longest]

    def word_pieces(self, word: str) -> list[int]:
        return [piece.id for piece in self.library_model.tokenize(word)]

    def _bytes_of_ids(self, word: bytes) -> bytes:
        """Returns the bytes of an int32 array with the ids of a word in UTF-8."""
        return np.array(self.word_pieces(word.decode()), np.int32).tobytes()

    def is_word_start(self, token: str) -> bool:
        return not token.startswith("##")

    def _encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        ids_of = self._word_ids.__getitem__
        lines = self._splitter.spaced(sentences).split(b"\n") if sentences else []
        return [np.frombuffer(b"".join(map(ids_of, line.split())), np.int32) for line in lines]

    def _encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        spaced, character_spans = self._splitter.spaced_aligned(text)
        for word in re.finditer(r"\S+", spaced):
            first = word.start()
            piece_ids = np.frombuffer(self._word_ids[word.group().encode()], np.int32).tolist()
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

    As in `transformers`, a blank line is an id that no text produces, and so is a line that is
    repeated later; see `tokens_by_id`.
    """
    if epath.Path(path).suffix == ".json":
        raise UserError(f"{path} is no vocab.txt; give a file with a token a line, in order of ids")
    lines = vocabulary_lines(path)
    ids = {line.rstrip("\r"): i for i, line in enumerate(lines)}
    ids.pop("", None)
    require_special_tokens(ids, special_tokens, path)
    return tokens_by_id(ids, len(lines))


class WordSplitter:
    """Splits text into words; `lowercase` strips accents too."""

    def __init__(self, lowercase: bool):
        self._lowercase = lowercase
        self._table = _CharacterTable(lowercase)

    def split(self, text: str) -> list[str]:
        return self.spaced(text.split("\n")).decode().split()

    def spaced(self, texts: Sequence[str]) -> bytes:
        """Returns the texts in UTF-8, a line each, with spaces between the words."""
        lines = "\n".join(map(self._partly_spaced, texts)).encode()
        # Four times as fast as in a str, and 20 times as `str.translate`.
        for mark in _ASCII_PUNCTUATION:
            lines = lines.replace(mark, b" %b " % mark)
        return lines

    def _partly_spaced(self, text: str) -> str:
        """Returns a text as one line, without control characters, lower-cased if need be.

        Punctuation in ASCII may still lack its spaces.
        """
        if text.isascii() and text.isprintable():
            return text.lower() if self._lowercase else text
        return text.translate(self._table)

    def spaced_aligned(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """Puts spaces between the words of a text, and finds the span of each character.

        The span of a character in `text` includes the stripped accents that follow it.
        """
        spans: list[tuple[int, int]] = []
        for index, character in enumerate(text):
            spaced = self._table[ord(character)]
            if not spaced and spans and unicodedata.category(character) == "Mn":
                spans[-1] = spans[-1][0], index + 1
            spans += [(index, index + 1)] * len(spaced)
        return text.translate(self._table), spans


class _CharacterTable(dict):
    """A cache for `str.translate`: the replacement of each code point.

    Every rule depends on one character only. This is four times as fast as normalizing whole texts
    by the `tokenizers` library.
    """

    def __init__(self, lowercase: bool):
        super().__init__()
        self._normalizer = normalizers.BertNormalizer(strip_accents=lowercase, lowercase=lowercase)
        self._splitter = pre_tokenizers.BertPreTokenizer()

    def __missing__(self, code: int) -> str:
        # The library refuses lone surrogates.
        text = "" if 0xD800 <= code < 0xE000 else self._normalizer.normalize_str(chr(code))
        # Between letters, the parts are those inside a word.
        words = self._splitter.pre_tokenize_str(f"a{text}a")
        text = self[code] = " ".join(word for word, _ in words)[1:-1]
        return text


WORDPIECE = Kind(
    WordPieceTokenizer,
    read_vocabulary,
    {"lowercase": False, "max_input_chars_per_word": 200},
    (VOCABULARY_FILE,),
)
