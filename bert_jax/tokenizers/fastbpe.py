"""fastBPE's BPE with a fairseq dictionary (PhoBERT), on the `tokenizers` library.

Each line of vocab.txt has a token and its count, each line of bpe.codes a merge and its count. A
piece that does not end its word ends with "@@". White space separates words: Vietnamese text must
be segmented beforehand, with "_" between the syllables of a word. The ids equal those of
`transformers`' PhobertTokenizer, except that it turns every line break into <unk>.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from etils import epath

from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import (
    SpecialTokens,
    Tokenizer,
    read_merges,
    read_vocabulary_file,
    vocabulary_lines,
)
from bert_jax.tokenizers.word_bpe import END, WordBpe

VOCABULARY_FILE, CODES_FILE = "vocab.txt", "bpe.codes"
CONTINUED = "@@"


class FastBpeFiles(NamedTuple):
    """The contents of vocab.txt and bpe.codes, and the tokens and merges in them."""

    contents: tuple[bytes, bytes]
    tokens: list[str]
    merges: list[tuple[str, str]]


class FastBpeTokenizer(Tokenizer):
    """A tokenizer of fastBPE's files; see `Tokenizer`.

    Whether a token begins a word depends on the piece before it, so `is_word_start_V` is True
    everywhere.

    Args:
      vocabulary: The contents of the two files.
      special_tokens: The vocabulary is `first`, the tokens of vocab.txt, and `last`.
    """

    kind = "fastbpe"

    def __init__(self, vocabulary: FastBpeFiles, *, special_tokens: SpecialTokens):
        contents, words, merges = vocabulary
        by_name = dict(zip((VOCABULARY_FILE, CODES_FILE), contents, strict=True))
        tokens = [*special_tokens.first, *words, *special_tokens.last]
        super().__init__({}, b"\0".join(contents), by_name, tokens, special_tokens)
        # bpe.codes marks pieces that end a word, not those that continue it.
        ids = {_inner_spelling(word): self.ids[word] for word in words}
        self._bpe = WordBpe(ids, merges, self.unk_id)

    def is_word_start(self, token: str) -> bool:
        return True

    def _encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        return [self._bpe.encode(sentence.split()) for sentence in sentences]

    def _encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        words = text.split()
        characters = [(i, i + 1) for i, c in enumerate(text) if not c.isspace()]
        return self._bpe.encode(words), self._bpe.spans(words, characters)

    def decode(self, ids: Sequence[int]) -> str:
        text = " ".join(self.id_to_token(int(i)) for i in ids)
        return text.replace(f"{CONTINUED} ", "").removesuffix(CONTINUED)


def read_files(path: epath.Path | Path, codes_path: epath.Path | Path) -> FastBpeFiles:
    """Reads a vocab.txt and a bpe.codes.

    Raises:
      UserError: A file cannot be read, a line is malformed, or a token is repeated.
    """
    vocabulary, codes = read_vocabulary_file(path), read_vocabulary_file(codes_path)
    tokens: dict[str, None] = {}
    for number, line in enumerate(vocabulary_lines(vocabulary, path), 1):
        token, _, count = line.strip().rpartition(" ")
        if not token or not count.isdigit() or token in tokens:
            raise UserError(f"{path}:{number}: {line!r} must be a new token and its count")
        tokens[token] = None
    return FastBpeFiles((vocabulary, codes), list(tokens), read_merges(codes_path))


def _inner_spelling(token: str) -> str:
    return token.removesuffix(CONTINUED) if token.endswith(CONTINUED) else token + END
