"""BPE on the words of Moses' tokenizer for French (FlauBERT), with the `sacremoses` package.

A piece that ends its word ends with "</w>". The ids equal those of `transformers`'
FlaubertTokenizer, except that it removes tabs and line breaks, which joins the words beside them;
here they are white space. `lowercase` keeps accents.
"""

import functools
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from etils import epath

from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import (
    CACHE_WORDS,
    SpecialTokens,
    Tokenizer,
    read_json_vocabulary,
    read_merges,
    require_special_tokens,
    tokens_by_id,
)
from bert_jax.tokenizers.word_bpe import END, Merges, WordBpe

VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
_LANGUAGE = "fr"
# The categories of characters that XLM leaves out.
_DROPPED = ("Cc", "Cf", "Co", "Cs")
_CONTROL_SPACES = re.compile(r"[\t-\r\x1c-\x1f\x85]")
# Moses replaces it by a comma.
_SPACE_IN_NUMBER = re.compile("(?<=\\d)\u00a0(?=\\d)")
# `encode_aligned` looks this many characters ahead for a place where both texts agree again.
_LOOK_AHEAD = 24


class MosesBpeTokenizer(Tokenizer):
    """A tokenizer of Moses' words; see `Tokenizer`.

    Args:
      vocabulary: The tokens in the order of ids, and the pairs of pieces to join, in order of
        priority. Joined pieces without an id are unknown.
      lowercase: Whether to lower-case text.
      special_tokens: See `Tokenizer`.

    Raises:
      UserError: sacremoses is not installed.
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
            VOCABULARY_FILE: json.dumps(ids, ensure_ascii=False).encode() + b"\n",
            MERGES_FILE: "".join(f"{a} {b}\n" for a, b in merges).encode(),
        }
        stored = b"\0".join(contents.values())
        super().__init__({"lowercase": lowercase}, stored, contents, tokens, special_tokens)
        # Text never produces a special token.
        for token in special_tokens.names:
            ids.pop(token, None)
        self._bpe = WordBpe(ids, merges, self.unk_id)
        self._words = moses_words(lowercase=lowercase)
        self._replaced = functools.lru_cache(CACHE_WORDS)(lambda c: "".join(self._words(c)))

    def is_word_start(self, token: str) -> bool:
        return True

    def _encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        return [self._bpe.encode(self._words(sentence)) for sentence in sentences]

    def _encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        words = self._words(text)
        characters = _character_spans(text, "".join(words), self._replaced)
        return self._bpe.encode(words), self._bpe.spans(words, characters)

    def decode(self, ids: Sequence[int]) -> str:
        text = ""
        for i in map(int, ids):
            token = self.tokens[i]
            is_whole = i in self.special_ids or i in self.added
            text += f"{token} " if is_whole else token.replace(END, " ")
        return text.removesuffix(" ")


def read_vocabulary(
    path: epath.Path | Path, merges_path: epath.Path | Path, *, special_tokens: SpecialTokens
) -> tuple[list[str], Merges]:
    """Reads a vocab.json and its merges.txt.

    Raises:
      UserError: A file cannot be read, a line is malformed, or a special token is missing.
    """
    tokens = tokens_by_id(read_json_vocabulary(path), path)
    require_special_tokens(tokens, special_tokens, path)
    return tokens, read_merges(merges_path)


def moses_words(*, lowercase: bool) -> Callable[[str], list[str]]:
    """Returns a function of a text that returns its words, as FlaubertTokenizer splits it.

    Raises:
      UserError: sacremoses is not installed.
    """
    try:
        import sacremoses
    except ImportError:
        raise UserError(
            "the tokenizer moses_bpe (FlauBERT) needs sacremoses, which is not installed: pip "
            "install -e '.[moses]'"
        ) from None
    punctuation = sacremoses.MosesPunctNormalizer(_LANGUAGE, pre_replace_unicode_punct=True)
    moses = sacremoses.MosesTokenizer(_LANGUAGE)

    def words(text: str) -> list[str]:
        text = _CONTROL_SPACES.sub(" ", text).replace("``", '"').replace("''", '"')
        text = unicodedata.normalize("NFC", text)
        text = punctuation.normalize(text.lower() if lowercase else text)
        if not text.isprintable():
            # Characters newer than the tables of this Python, such as emoji, are kept.
            text = "".join(c for c in text if unicodedata.category(c) not in _DROPPED)
        return [word for word in moses.tokenize(text, return_str=False, escape=False) if word]

    return words


def _character_spans(
    text: str, characters: str, replaced: Callable[[str], str]
) -> list[tuple[int, int]]:
    """Finds the characters of a text's words in the text.

    Moses replaces single characters ("«" by a quotation mark) and, in some contexts, several. The
    single ones are replaced first. Where both texts still differ, all characters up to the next
    place where they agree have the same span.

    Args:
      text: The text.
      characters: Its words, joined.
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
