"""BPE of words whose last piece ends with "</w>", on the `tokenizers` library."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from tokenizers import models

from bert_jax.tokenizers.base import CACHE_WORDS

END = "</w>"
Merges = Sequence[tuple[str, str]]
# The library's unknown piece; no word contains a space.
_UNKNOWN = " "


class WordBpe:
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
