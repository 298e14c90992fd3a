"""BPE of words whose last piece ends with "</w>", on the `tokenizers` library."""

import abc
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from etils import epath
from tokenizers import AddedToken, models

from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import (
    CACHE_WORDS,
    SpecialTokens,
    Tokenizer,
    read_json_vocabulary,
    read_vocabulary_file,
    require_special_tokens,
    tokens_by_id,
    vocabulary_lines,
)
from bert_jax.tokenizers.merges import Merges

VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
END = "</w>"
# The library's unknown piece; no word contains a space.
_UNKNOWN = " "


class WordBpe:
    """Splits words into pieces.

    Args:
      ids: The id of each piece, which ends with `END` if it ends its word.
      merges: The pairs of pieces to join, in order of priority.
      unk_id: The id of all other pieces.
    """

    def __init__(self, ids: Mapping[str, int], merges: Sequence[tuple[str, str]], unk_id: int):
        # The library needs a number for every piece that a merge joins, even one without an id.
        spellings = dict.fromkeys([_UNKNOWN, *ids])
        spellings.update(dict.fromkeys(x for a, b in merges for x in (a, b, a + b)))
        self._ids = [ids.get(spelling, unk_id) for spelling in spellings]
        self._lengths = [len(spelling.removesuffix(END)) for spelling in spellings]
        model = models.BPE(
            {spelling: i for i, spelling in enumerate(spellings)},
            list(merges),
            unk_token=_UNKNOWN,
            end_of_word_suffix=END,
        )
        self._pieces = functools.lru_cache(CACHE_WORDS)(
            lambda word: [piece.id for piece in model.tokenize(word)]
        )

    def encode(self, words: Sequence[str]) -> np.ndarray:
        """Returns the ids of the pieces of words, int32 [T]."""
        ids, pieces = self._ids, self._pieces
        return np.array([ids[piece] for word in words for piece in pieces(word)], np.int32)

    def spans(self, words: Sequence[str], characters: Sequence[tuple[int, int]]) -> np.ndarray:
        """Returns the span of each piece, int32 [T, 2], given that of each character of `words`."""
        spans, start = [], 0
        for piece in (piece for word in words for piece in self._pieces(word)):
            stop = start + self._lengths[piece]
            spans.append((characters[start][0], characters[stop - 1][1]))
            start = stop
        return np.array(spans, np.int32).reshape(-1, 2)


class WordBpeTokenizer(Tokenizer):
    """A tokenizer that splits text into words and words into pieces; see `Tokenizer`.

    Whether a token begins a word depends on the piece before it, so `is_word_start_V` is True
    everywhere; see `begins_word`.

    Args:
      vocabulary: The tokens in the order of ids, and the pairs of pieces to join, in order of
        priority. Joined pieces without an id are unknown.
      options: See `Tokenizer`.
      special_tokens: See `Tokenizer`.
    """

    def __init__(
        self,
        vocabulary: tuple[Sequence[str], Merges],
        options: dict[str, Any],
        special_tokens: SpecialTokens,
    ):
        tokens, merges = vocabulary
        ids = {token: i for i, token in enumerate(tokens)}
        contents = {
            VOCABULARY_FILE: json.dumps(ids, ensure_ascii=False).encode() + b"\n",
            MERGES_FILE: "".join(f"{a} {b}\n" for a, b in merges).encode(),
        }
        super().__init__(options, b"\0".join(contents.values()), contents, tokens, special_tokens)
        # Text never produces a special token.
        for token in {*special_tokens.first, *special_tokens.last, *special_tokens.spellings}:
            ids.pop(token, None)
        self.merges = merges
        self._bpe = WordBpe(ids, merges, self.unk_id)
        self._ends_word_V = np.array([token.endswith(END) for token in tokens])
        self._ends_word_V[list(self.special_ids)] = True

    @abc.abstractmethod
    def words(self, text: str) -> list[str]:
        """Splits a text into words."""

    @abc.abstractmethod
    def words_aligned(self, text: str) -> tuple[list[str], list[tuple[int, int]]]:
        """Splits a text into words; returns also the span in it of each of their characters."""

    def is_word_start(self, token: str) -> bool:
        return True

    def begins_word(self, ids: np.ndarray) -> np.ndarray:
        begins = np.ones(ids.shape, bool)
        begins[..., 1:] = self._ends_word_V[ids[..., :-1]]
        return begins | np.isin(ids, self.special_ids)

    def with_added(self, added: Mapping[int, AddedToken], path: epath.PathLike) -> Self:
        other = super().with_added(added, path)
        other._ends_word_V = np.ones(other.vocab_size, bool)
        other._ends_word_V[: self.vocab_size] = self._ends_word_V
        return other

    def piece_text(self, token_id: int) -> str:
        return self.id_to_token(token_id).removesuffix(END)

    def _encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        return [self._bpe.encode(self.words(sentence)) for sentence in sentences]

    def _encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        words, characters = self.words_aligned(text)
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
    """Reads a vocab.json and its merges.txt, whose lines may have a count after the two pieces.

    Raises:
      UserError: A file cannot be read, a line is malformed, or a special token is missing.
    """
    tokens = tokens_by_id(read_json_vocabulary(path), path)
    require_special_tokens(tokens, special_tokens, path)
    merges = []
    lines = vocabulary_lines(read_vocabulary_file(merges_path), merges_path)
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if number == 1 and line.startswith("#version"):
            continue
        if len(parts) < 2:
            raise UserError(f"{merges_path}:{number}: {line!r} must be two pieces")
        merges.append((parts[0], parts[1]))
    return tokens, merges
