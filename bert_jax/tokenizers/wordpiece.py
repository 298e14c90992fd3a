"""BERT's WordPiece: splits text into words (see `words`), and words by greedy longest match.

The `tokenizers` library finds the matches, and a cache keeps the pieces of each word.
"""

import functools
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from etils import epath
from tokenizers import decoders, models

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import (
    SPECIAL_TOKENS,
    SpecialTokens,
    Tokenizer,
    read_vocabulary_file,
    require_special_tokens,
    vocabulary_lines,
)
from bert_jax.tokenizers.words import WordSplitter

VOCABULARY_FILE = "vocab.txt"
# Limits the cache to tens of megabytes.
_CACHE_WORDS = 2**18


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
        super().__init__(options, "\n".join(tokens).encode(), tokens, special_tokens)
        self._splitter = WordSplitter(lowercase)
        self.library_model = models.WordPiece(
            self.ids,
            unk_token=special_tokens.unk,
            max_input_chars_per_word=max_input_chars_per_word,
        )
        self._word_ids = functools.lru_cache(_CACHE_WORDS)(
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
                # A single piece covers the whole word. It may be [UNK], or spell "##".
                stop = first + length if len(piece_ids) > 1 else word.end()
                spans.append((character_spans[first][0], character_spans[stop - 1][1]))
                first = stop
            ids += piece_ids
        return np.array(ids, np.int32), np.array(spans, np.int32).reshape(-1, 2)

    def decode(self, ids: Sequence[int]) -> str:
        return self._decoder.decode([self.id_to_token(int(i)) for i in ids])

    def save_vocabulary(self, directory: Path | epath.Path) -> None:
        text = "".join(f"{token}\n" for token in self.tokens)
        files.write_whole(directory / VOCABULARY_FILE, text.encode())


def read_vocabulary(
    path: epath.PathLike, special_tokens: SpecialTokens = SPECIAL_TOKENS
) -> list[str]:
    """Returns the entries of a vocab.txt in the order of their ids.

    Raises:
      UserError: The file cannot be read, has a blank or repeated line, or lacks a special
        token.
    """
    lines = vocabulary_lines(read_vocabulary_file(path), path)
    tokens = [line.rstrip("\r") for line in lines]
    seen: set[str] = set()
    for number, token in enumerate(tokens, 1):
        if not token or token in seen:
            raise UserError(f"{path}:{number}: the entry {token!r} is blank or repeated; remove it")
        seen.add(token)
    require_special_tokens(tokens, special_tokens, path)
    return tokens
