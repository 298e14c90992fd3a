"""Tokens that are found in a text before it is tokenized, as in `transformers`.

`add_tokens` and `add_special_tokens` of `transformers` make them. They are no part of the
tokenizer's model, and have ids inside its vocabulary or after it.
"""

import json
from collections.abc import Mapping
from typing import Any

import tokenizers
from etils import epath
from tokenizers import AddedToken, models, normalizers

from bert_jax.base import files

# The file beside those of a vocabulary. Added_tokens.json would be the file of transformers.
ADDED_FILE = "bert_jax_added_tokens.json"
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


class AddedTokenFinder:
    """Finds added tokens in a text, as the `tokenizers` library does.

    Args:
      added: The tokens by their ids.
      normalizer: Applied to the text before tokens with the flag `normalized` are found.
    """

    def __init__(self, added: Mapping[int, AddedToken], normalizer: normalizers.Normalizer | None):
        # The text between two added tokens is a single unknown word with the id 0.
        self._library = tokenizers.Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        if normalizer:
            self._library.normalizer = normalizer
        self._ids = list(added)
        self._library.add_tokens(list(added.values()))

    def parts(self, text: str) -> list[tuple[int, int, int | None]]:
        """Returns the start and the end of each part of a text, and the id of an added token.

        Every second part, from the first to the last, is text, maybe empty, with None as its id.
        """
        encoded = self._library.encode(text, add_special_tokens=False)
        found, last = [], 0
        for i, (start, end) in zip(encoded.ids, encoded.offsets, strict=True):
            if i:
                found += [(last, start, None), (start, end, self._ids[i - 1])]
                last = end
        return [*found, (last, len(text), None)]


def added_content(added: Mapping[int, AddedToken]) -> bytes:
    """Returns the content of ADDED_FILE, a list as in a tokenizer.json."""
    tokens = [{"id": i, **described(token)} for i, token in added.items()]
    return json.dumps({"added_tokens": tokens}, indent=2, ensure_ascii=False).encode() + b"\n"


def read_added(path: epath.PathLike) -> dict[int, AddedToken]:
    """Reads the added tokens of an ADDED_FILE or a tokenizer.json, by their ids."""
    listed = files.read_json(epath.Path(path)).get("added_tokens") or ()
    return {token["id"]: token_of(token["content"], token) for token in listed}


def described(token: AddedToken) -> dict[str, str | bool]:
    """Returns the content and the flags of a token."""
    return {"content": token.content, **{flag: getattr(token, flag) for flag in FLAGS}}


def token_of(content: str, flags: Mapping[str, Any]) -> AddedToken:
    return AddedToken(content, **{flag: bool(flags[flag]) for flag in FLAGS if flag in flags})
