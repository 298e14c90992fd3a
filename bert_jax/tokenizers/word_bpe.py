"""BPE of words that Python code splits: fastBPE's (PhoBERT) and XLM's with Moses (FlauBERT).

Inside, a piece that ends its word ends with "</w>".

* fastbpe has a fairseq dictionary. Each line of vocab.txt has a token and its count, each line of
  bpe.codes a merge and its count. A piece that does not end its word is spelled with "@@". White
  space separates words: Vietnamese text must be segmented beforehand, with "_" between the
  syllables of a word. The ids equal those of `transformers`' PhobertTokenizer, except that it turns
  every line break into <unk>.
* moses_bpe has the words of Moses' tokenizer for French, with the `sacremoses` package. The ids
  equal those of `transformers`' FlaubertTokenizer, except that it removes tabs and line breaks,
  which joins the words beside them; here they are white space. `lowercase` keeps accents.
"""

import functools
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from tokenizers import models

from bert_jax.base import files
from bert_jax.tokenizers.base import Kind, Tokenizer, WordCache
from bert_jax.tokenizers.special_tokens import SpecialTokens
from bert_jax.tokenizers.vocabularies import (
    read_merges,
    require_special_tokens,
    tokens_by_id,
    vocabulary_lines,
)

END = "</w>"
Merges = Sequence[tuple[str, str]]
FASTBPE_FILE, CODES_FILE = "vocab.txt", "bpe.codes"
MOSES_FILE, MERGES_FILE = "vocab.json", "merges.txt"
_CONTINUED = "@@"
# The library's unknown piece; no word contains a space.
_UNKNOWN = " "
_LANGUAGE = "fr"
# The categories of characters that XLM leaves out.
_DROPPED = ("Cc", "Cf", "Co", "Cs")
_CONTROL_SPACES = re.compile(r"[\t-\r\x1c-\x1f\x85]")
# Moses replaces it by a comma.
_SPACE_IN_NUMBER = re.compile("(?<=\\d)\u00a0(?=\\d)")
# `encode_aligned` looks this many characters ahead for a place where both texts agree again.
_LOOK_AHEAD = 24


class _WordBpe:
    """Splits words into pieces.

    Args:
      ids: The id of each piece, which ends with `END` if it ends its word.
      merges: The pairs of pieces to join, in order of priority.
      unk_id: The id of all other pieces.
    """

    def __init__(self, ids: Mapping[str, int], merges: Merges, unk_id: int):
        # The library needs a number for every piece that a merge joins, even one without an id.
        spellings = dict.fromkeys([_UNKNOWN, *ids])
        spellings.update(dict.fromkeys(x for a, b in merges for x in (a, b, a + b)))
        self._ids = [ids.get(spelling, unk_id) for spelling in spellings]
        self._lengths = [len(spelling.removesuffix(END)) for spelling in spellings]
        self._model = models.BPE(
            {spelling: i for i, spelling in enumerate(spellings)},
            list(merges),
            unk_token=_UNKNOWN,
            end_of_word_suffix=END,
        )
        self._pieces = WordCache(self._pieces_of)

    def _pieces_of(self, word: str) -> list[int]:
        return [piece.id for piece in self._model.tokenize(word)]

    def encode(self, words: Sequence[str]) -> np.ndarray:
        """Returns the ids of the pieces of words, int32 [T]."""
        ids, pieces = self._ids, self._pieces
        return np.array([ids[piece] for word in words for piece in pieces[word]], np.int32)

    def spans(self, words: Sequence[str], characters: Sequence[tuple[int, int]]) -> np.ndarray:
        """Returns the span of each piece, int32 [T, 2], given that of each character of `words`."""
        spans, start = [], 0
        for piece in (piece for word in words for piece in self._pieces[word]):
            stop = start + self._lengths[piece]
            spans.append((characters[start][0], characters[stop - 1][1]))
            start = stop
        return np.array(spans, np.int32).reshape(-1, 2)


class FastBpeTokenizer(Tokenizer):
    """A tokenizer of fastBPE's files; see `Tokenizer`.

    Args:
      vocabulary: The contents of the two files by their names, the tokens of vocab.txt, and the
        merges.
      special_tokens: The vocabulary is `first`, the tokens of vocab.txt, and `last`.
    """

    kind = "fastbpe"

    def __init__(
        self,
        vocabulary: tuple[dict[str, bytes], list[str], Merges],
        *,
        special_tokens: SpecialTokens,
    ):
        contents, words, merges = vocabulary
        tokens = [*special_tokens.first, *words, *special_tokens.last]
        super().__init__({}, b"\0".join(contents.values()), contents, tokens, special_tokens)
        # bpe.codes marks pieces that end a word, not those that continue it.
        self._bpe = _WordBpe({_inner(word): self.ids[word] for word in words}, merges, self.unk_id)

    def _encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        return [self._bpe.encode(sentence.split()) for sentence in sentences]

    def _encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        words = text.split()
        characters = [(i, i + 1) for i, c in enumerate(text) if not c.isspace()]
        return self._bpe.encode(words), self._bpe.spans(words, characters)

    def decode(self, ids: Sequence[int]) -> str:
        text = " ".join(self.id_to_token(int(i)) for i in ids)
        return text.replace(f"{_CONTINUED} ", "").removesuffix(_CONTINUED)


def read_fastbpe(
    path: epath.Path | Path, codes_path: epath.Path | Path
) -> tuple[dict[str, bytes], list[str], Merges]:
    tokens = [line.strip().rpartition(" ")[0] for line in vocabulary_lines(path)]
    contents = {FASTBPE_FILE: files.read_whole(path), CODES_FILE: files.read_whole(codes_path)}
    return contents, tokens, read_merges(codes_path)


def fastbpe_contents(words: Sequence[str], merges: Merges) -> dict[str, bytes]:
    """Returns the two files of a vocabulary. All counts are 1, because no tokenizer reads them."""
    tokens = "".join(f"{word} 1\n" for word in words)
    codes = "".join(f"{a} {b} 1\n" for a, b in merges)
    return {FASTBPE_FILE: tokens.encode(), CODES_FILE: codes.encode()}


def fastbpe_token(piece: str) -> str:
    """Returns the spelling of a piece in vocab.txt; empty if it would be that of another piece."""
    token = piece.removesuffix(END) if piece.endswith(END) else piece + _CONTINUED
    return token if _inner(token) == piece else ""


def _inner(token: str) -> str:
    return token.removesuffix(_CONTINUED) if token.endswith(_CONTINUED) else token + END


class MosesBpeTokenizer(Tokenizer):
    """A tokenizer of Moses' words; see `Tokenizer`.

    Args:
      vocabulary: The tokens in the order of ids, and the pairs of pieces to join, in order of
        priority. Joined pieces without an id are unknown.
    """

    kind = "moses_bpe"
    word_end = END

    def __init__(
        self,
        vocabulary: tuple[Sequence[str], Merges],
        *,
        lowercase: bool,
        special_tokens: SpecialTokens,
    ):
        tokens, merges = vocabulary
        ids = {token: i for i, token in enumerate(tokens)}
        contents = {
            MOSES_FILE: json.dumps(ids, ensure_ascii=False).encode() + b"\n",
            MERGES_FILE: "".join(f"{a} {b}\n" for a, b in merges).encode(),
        }
        stored = b"\0".join(contents.values())
        super().__init__({"lowercase": lowercase}, stored, contents, tokens, special_tokens)
        # Text never produces a special token.
        for token in special_tokens.names:
            ids.pop(token, None)
        self._bpe = _WordBpe(ids, merges, self.unk_id)
        self._words = moses_words(lowercase=lowercase)
        self._replaced = WordCache(self._replacement)

    def _replacement(self, character: str) -> str:
        return "".join(self._words(character))

    def _encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        return [self._bpe.encode(self._words(sentence)) for sentence in sentences]

    def _encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        words = self._words(text)
        characters = _character_spans(text, "".join(words), self._replaced.__getitem__)
        return self._bpe.encode(words), self._bpe.spans(words, characters)

    def decode(self, ids: Sequence[int]) -> str:
        text = ""
        for i in map(int, ids):
            token = self.tokens[i]
            is_whole = i in self.special_ids or i in self.added
            text += f"{token} " if is_whole else token.replace(END, " ")
        return text.removesuffix(" ")


def read_moses(
    path: epath.Path | Path, merges_path: epath.Path | Path, *, special_tokens: SpecialTokens
) -> tuple[list[str], Merges]:
    tokens = tokens_by_id(json.loads(files.read_whole(path)))
    require_special_tokens(tokens, special_tokens, path)
    return tokens, read_merges(merges_path)


def moses_words(*, lowercase: bool) -> Callable[[str], list[str]]:
    """Returns a function of a text that returns its words, as FlaubertTokenizer splits it."""
    import sacremoses

    punctuation = sacremoses.MosesPunctNormalizer(_LANGUAGE, pre_replace_unicode_punct=True)
    moses = sacremoses.MosesTokenizer(_LANGUAGE)
    return functools.partial(_moses_words, punctuation, moses, lowercase)


def _moses_words(punctuation: Any, moses: Any, lowercase: bool, text: str) -> list[str]:
    text = _CONTROL_SPACES.sub(" ", text).replace("``", '"').replace("''", '"')
    text = unicodedata.normalize("NFC", text)
    text = punctuation.normalize(text.lower() if lowercase else text)
    if not text.isprintable():
        # Characters newer than the tables of this Python, such as emoji, are kept.
        text = "".join(c for c in text if unicodedata.category(c) not in _DROPPED)
    return [word for word in moses.tokenize(text, return_str=False, escape=False) if word]


def _character_spans(
    text: str, characters: str, replaced: Callable[[str], str]
) -> list[tuple[int, int]]:
    """Finds the characters of a text's words in the text.

    Moses replaces single characters ("«" by a quotation mark) and, in some contexts, several. The
    single ones are replaced first. Where both texts still differ, all characters up to the next
    place where they agree have the same span.

    Args:
      characters: The words of `text`, joined.
      replaced: A function of a single character that returns its words, joined.

    Returns:
      The span (start, end) of each of `characters`; starts and ends never decrease.
    """
    text = _SPACE_IN_NUMBER.sub(",", text)
    source = "".join(map(replaced, text))
    at = [i for i, c in enumerate(text) for _ in replaced(c)]
    spans: list[tuple[int, int]] = []
    i = j = 0
    while j < len(characters):
        if source[i : i + 1] == characters[j]:
            spans.append((at[i], at[i] + 1))
            i, j = i + 1, j + 1
            continue
        # No character comes from nothing, so `a` is at least 1.
        skips = ((total - b, b) for total in range(1, _LOOK_AHEAD) for b in range(total))
        agree = (
            (a, b) for a, b in skips if source[i + a : i + a + 2] == characters[j + b : j + b + 2]
        )
        a, b = next(agree, (1, 1))
        first, last = min(i, len(at) - 1), min(i + a, len(at)) - 1
        spans += [(at[first], at[last] + 1)] * b
        i, j = i + a, j + b
    return spans


FASTBPE = Kind(
    FastBpeTokenizer,
    lambda *paths, special_tokens: read_fastbpe(*paths),
    {},
    (FASTBPE_FILE,),
    CODES_FILE,
)
MOSES_BPE = Kind(MosesBpeTokenizer, read_moses, {"lowercase": False}, (MOSES_FILE,), MERGES_FILE)
