"""Any BPE that a tokenizer.json of the `tokenizers` library describes, such as Gemma's.

Gemma 2's tokenizer, which mmBERT has, joins the characters of a whole text ("▁" is the space) and
falls back to bytes. These rules come from the file, so no class of `transformers` is needed. The
ids are those of the library, except that the five special tokens spelled out in the text are plain
text here.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers
from etils import epath
from tokenizers import normalizers

from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import (
    SpecialTokens,
    Tokenizer,
    aligned,
    read_json_vocabulary,
    require_special_tokens,
    tokens_by_id,
)

LIBRARY_FILE = "tokenizer.json"
WORD_START = "▁"


class JsonTokenizer(Tokenizer):
    """A tokenizer of the library; see `Tokenizer`.

    Args:
      content: What `read_vocabulary` returns.
      special_tokens: See `Tokenizer`.
    """

    kind = "tokenizer_json"
    word_start = WORD_START

    def __init__(self, content: str, *, special_tokens: SpecialTokens):
        self._content = content
        self._backend = self.library()
        tokens = tokens_by_id(self._backend.get_vocab(), LIBRARY_FILE)
        stored = content.encode() + b"\n"
        super().__init__({}, stored, {LIBRARY_FILE: stored}, tokens, special_tokens)

    def library(self) -> tokenizers.Tokenizer:
        """Returns a new tokenizer of the library, without added tokens."""
        return tokenizers.Tokenizer.from_str(self._content)

    @property
    def normalizer(self) -> normalizers.Normalizer | None:
        return self._backend.normalizer

    def is_word_start(self, token: str) -> bool:
        return token.startswith(WORD_START) or token in self.special_tokens.spellings

    def _encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        return [np.array(self._backend.encode(s).ids, np.int32) for s in sentences]

    def _encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        return aligned(self._backend.encode(text), text)

    def decode(self, ids: Sequence[int]) -> str:
        text = ""
        for is_special, group in itertools.groupby(ids, self.special_ids.__contains__):
            if is_special:
                text += "".join(self.tokens[i] for i in group)
            else:
                text += self._backend.decode(list(group), skip_special_tokens=False)
        return text


def read_vocabulary(path: epath.Path | Path, *, special_tokens: SpecialTokens) -> str:
    """Reads a tokenizer.json without what surrounds a text, in the library's own spelling.

    Raises:
      UserError: The file is damaged, has no BPE, or lacks a special token.
    """
    content = read_json_vocabulary(path)
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or model.get("ignore_merges"):
        raise UserError(f"{path} has no BPE model that joins pieces by merges only")
    try:
        added = content.get("added_tokens") or []
        # Added tokens that are not among the pieces keep their ids.
        model["vocab"].update({token["content"]: token["id"] for token in added})
        content |= {
            "added_tokens": [],
            "post_processor": None,
            "truncation": None,
            "padding": None,
        }
        library = tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # The library raises nothing more specific.
        raise UserError(f"{path} is damaged or not a tokenizer.json: {error}") from None
    require_special_tokens(tokens_by_id(library.get_vocab(), path), special_tokens, path)
    return library.to_str()
