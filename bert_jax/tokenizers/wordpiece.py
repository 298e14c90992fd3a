"""BERT's WordPiece, on the `tokenizers` library.

The rules are those of google-research/bert's tokenization.py: control characters
dropped, CJK characters spaced apart (cased and uncased alike), lower-casing with
accents stripped, punctuation split off, then greedy longest match.
"""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.errors import UserError
from bert_jax.tokenizers.base import Tokenizer, require_special_tokens

VOCABULARY_FILE = "vocab.txt"
# Most text is ASCII with typographic quotes and dashes. For such a sentence the
# rules above come down to one regular expression, and each word is looked up in
# a cache: three times as fast as the library, with the same result (a test
# compares them). These characters are all punctuation, unchanged by NFD.
_PLAIN_PUNCTUATION = r"!-/:-@\[-`{-~‘’“”–—…"
_PLAIN_SENTENCE = re.compile(rf"[ 0-9A-Za-z{_PLAIN_PUNCTUATION}]*").fullmatch
_PLAIN_WORDS = re.compile(rf"[0-9A-Za-z]+|[{_PLAIN_PUNCTUATION}]").findall
# Bounds the memory of the cache to some tens of megabytes.
_CACHE_WORDS = 2**18


class WordPieceTokenizer(Tokenizer):
    """See `Tokenizer`. `tokens` is the vocabulary in the order of its ids."""

    kind = "wordpiece"

    def __init__(self, tokens: Sequence[str], *, lowercase: bool, max_input_chars_per_word: int):
        options = {"lowercase": lowercase, "max_input_chars_per_word": max_input_chars_per_word}
        super().__init__(options, "\n".join(tokens).encode(), tokens)
        self._lowercase = lowercase
        self._backend = tokenizers.Tokenizer(
            models.WordPiece(
                {token: i for i, token in enumerate(tokens)},
                unk_token="[UNK]",
                max_input_chars_per_word=max_input_chars_per_word,
            )
        )
        self._backend.normalizer = normalizer(lowercase)
        self._backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._decoder = decoders.WordPiece(cleanup=True)
        self._word_ids = _WordIds(self._backend)

    @staticmethod
    def is_word_start(token: str) -> bool:
        return not token.startswith("##")

    def encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        return [np.array(self._encode(sentence), np.int32) for sentence in sentences]

    def decode(self, ids: Sequence[int]) -> str:
        return self._decoder.decode([self.id_to_token(int(i)) for i in ids])

    def _encode(self, sentence: str) -> list[int]:
        if not _PLAIN_SENTENCE(sentence):
            return self._backend.encode(sentence, add_special_tokens=False).ids
        words = _PLAIN_WORDS(sentence.lower() if self._lowercase else sentence)
        return list(chain.from_iterable(map(self._word_ids.__getitem__, words)))

    def _save_vocabulary(self, directory: Path) -> None:
        text = "".join(f"{token}\n" for token in self._tokens)
        (directory / VOCABULARY_FILE).write_bytes(text.encode())


class _WordIds(dict):
    """A cache: word to the ids of its pieces."""

    def __init__(self, backend: tokenizers.Tokenizer):
        super().__init__()
        self._backend = backend

    def __missing__(self, word: str) -> list[int]:
        if len(self) >= _CACHE_WORDS:
            self.clear()
        ids = self._backend.encode(word, add_special_tokens=False).ids
        self[word] = ids
        return ids


def normalizer(lowercase: bool) -> normalizers.Normalizer:
    """BERT's text clean-up; lower-casing also strips accents."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )


def read_vocabulary(path: str | Path) -> list[str]:
    """Returns the entries of a vocab.txt in the order of their ids.

    Raises:
      UserError: if the file cannot be read, is empty, has a blank or repeated
        line, or lacks one of the special tokens.
    """
    try:
        text = Path(path).read_bytes().decode()
    except OSError as e:
        raise UserError(f"cannot read the vocabulary {path}: {e.strerror}") from None
    except UnicodeDecodeError as e:
        line = e.object.count(b"\n", 0, e.start) + 1
        raise UserError(f"{path}:{line}: the vocabulary is not valid UTF-8") from None
    # Only "\n" ends a line: vocabularies hold other line separators as entries.
    tokens = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    if tokens == [""]:
        raise UserError(f"the vocabulary {path} is empty: it needs one entry a line")
    seen: dict[str, int] = {}
    for number, token in enumerate(tokens, 1):
        if not token:
            raise UserError(f"{path}:{number}: blank line in the vocabulary; remove it")
        if token in seen:
            raise UserError(f"{path}:{number}: {token!r} is already on line {seen[token]}")
        seen[token] = number
    require_special_tokens(tokens, path)
    return tokens
