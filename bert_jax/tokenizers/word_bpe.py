"""BPE of single words, whose last piece ends with "</w>", on the `tokenizers` library."""

import functools
from collections.abc import Mapping, Sequence

from tokenizers import models

from bert_jax.tokenizers.base import CACHE_WORDS

END = "</w>"
# The library's unknown piece; no word contains a space.
_UNKNOWN = " "


class WordBpe:
    """Splits words into pieces.

    Args:
      ids: The id of each piece, which ends with `END` if it ends its word.
      merges: The pairs of pieces to join, in order of priority.
      unk_id: The id of all other pieces.

    Attributes:
      pieces: A function of a word that returns the numbers of its pieces.
      ids, lengths: The id, and the length in characters, of each number.
    """

    def __init__(self, ids: Mapping[str, int], merges: Sequence[tuple[str, str]], unk_id: int):
        # The library needs a number for every piece that a merge joins, even one without an id.
        spellings = dict.fromkeys([_UNKNOWN, *ids])
        spellings.update(dict.fromkeys(x for a, b in merges for x in (a, b, a + b)))
        self.ids = [ids.get(spelling, unk_id) for spelling in spellings]
        self.lengths = [len(spelling.removesuffix(END)) for spelling in spellings]
        model = models.BPE(
            {spelling: i for i, spelling in enumerate(spellings)},
            list(merges),
            unk_token=_UNKNOWN,
            end_of_word_suffix=END,
        )
        self.pieces = functools.lru_cache(CACHE_WORDS)(
            lambda word: [piece.id for piece in model.tokenize(word)]
        )
