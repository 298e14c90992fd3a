"""Byte-level BPE (GPT-2, RoBERTa), on the `tokenizers` library.

GPT-2's regular expression splits text into words, each with the space before it. Tokens consist of
bytes, so any text can be encoded; "Ġ" is the space. The ids equal those of `transformers`'
RobertaTokenizer, slow and fast, except that special tokens spelled out in the text are plain text
here.

ModernBERT's vocabulary, which is OLMo's, has one more rule: text is first composed (NFC). It comes
with its tokenizer.json, which then is the vocabulary's file.

The option `add_prefix_space` puts a space before a text that does not begin with white space. It
is off by default, as in RoBERTa: fairseq's examples/roberta/multiprocessing_bpe_encoder.py encodes
each line as it is, so the first word of a line has no "Ġ".
"""

import functools
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import (
    CACHE_WORDS,
    SpecialTokens,
    Tokenizer,
    aligned,
    read_json_vocabulary,
    read_vocabulary_file,
    require_special_tokens,
    tokens_by_id,
    vocabulary_lines,
)
from bert_jax.tokenizers.merges import Merges

VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
WORD_START = "Ġ"
LIBRARY_FILE = "tokenizer.json"
_MERGES_HEADER = "#version: 0.2"
# GPT-2's regular expression (openai/gpt-2, encoder.py) for ASCII text, for which Python's character
# classes equal the library's.
ASCII_WORDS = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII
)


class ByteBpeTokenizer(Tokenizer):
    """A byte-level BPE tokenizer; see `Tokenizer`.

    Args:
      vocabulary: The tokens in the order of ids, the pairs of tokens to join, in order of
        priority, and possibly whether the text is first normalized to NFC.
      add_prefix_space: Whether to put a space before each text that does not begin with one.
      special_tokens: See `Tokenizer`.
    """

    kind = "byte_bpe"
    word_start = WORD_START

    def __init__(
        self,
        vocabulary: tuple[Sequence[str], Merges] | tuple[Sequence[str], Merges, bool],
        *,
        add_prefix_space: bool,
        special_tokens: SpecialTokens,
    ):
        tokens, self.merges, *composes = vocabulary
        self.composes = any(composes)
        merges, ids = self.merges, {token: i for i, token in enumerate(tokens)}
        lines = [_MERGES_HEADER, *(" ".join(pair) for pair in merges)]
        contents = {
            VOCABULARY_FILE: json.dumps(ids, ensure_ascii=False).encode() + b"\n",
            MERGES_FILE: "".join(f"{line}\n" for line in lines).encode(),
        }
        if self.composes:
            contents = {LIBRARY_FILE: _library_content(ids, merges)}
        options = {"add_prefix_space": add_prefix_space}
        super().__init__(options, b"".join(contents.values()), contents, tokens, special_tokens)
        self.library_model = models.BPE(ids, merges, unk_token=special_tokens.unk)
        self._backend = tokenizers.Tokenizer(self.library_model)
        self._backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if self.normalizer:
            self._backend.normalizer = self.normalizer
        self._word_ids = functools.lru_cache(CACHE_WORDS)(
            lambda word: self._backend.encode(word).ids
        )
        self._decoder = decoders.ByteLevel()

    @property
    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.composes else None

    def is_word_start(self, token: str) -> bool:
        return token.startswith(WORD_START) or token in self.special_tokens.spellings

    def _encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        return [np.array(self._encode(self._with_space(s)), np.int32) for s in sentences]

    def _encode(self, text: str) -> list[int]:
        if not text.isascii():
            return self._backend.encode(text).ids
        # A cache of words is three times as fast as the library.
        return [i for word in ASCII_WORDS.findall(text) for i in self._word_ids(word)]

    def _with_space(self, text: str) -> str:
        has_space = not text or text.startswith(" ")
        return text if has_space or not self.options["add_prefix_space"] else f" {text}"

    def id_to_token(self, token_id: int) -> str:
        """See `Tokenizer`. A token with an incomplete character is returned as stored."""
        token = self.tokens[token_id]
        text = self._decoder.decode([token])
        return token if "\ufffd" in text else text.replace(" ", WORD_START)

    def _encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        spaced = self._with_space(text)
        return aligned(self._backend.encode(spaced), text, len(spaced) - len(text))

    def decode(self, ids: Sequence[int]) -> str:
        text = ""
        for is_special, group in itertools.groupby(ids, self.special_ids.__contains__):
            tokens = [self.tokens[i] for i in group]
            text += "".join(tokens) if is_special else self._decoder.decode(tokens)
        return text


def read_vocabulary(
    path: epath.Path | Path,
    merges_path: epath.Path | Path | None = None,
    *,
    special_tokens: SpecialTokens,
) -> tuple[list[str], Merges, bool]:
    """Reads the tokens in the order of their ids, the merges, and whether text is composed.

    Args:
      path: A vocab.json, or a tokenizer.json of the `tokenizers` library.
      merges_path: The merges.txt of a vocab.json.

    Raises:
      UserError: The files cannot be read, are not of a byte-level BPE, or lack a special token.
    """
    content = read_json_vocabulary(path)
    composes = False
    if merges_path:
        ids, merges = content, _read_merges(merges_path)
    else:
        composes = _check_library_file(content, path)
        ids, merges = ids_and_merges(content)
    tokens = tokens_by_id(ids, path)
    require_special_tokens(tokens, special_tokens, path)
    check_merges(merges, tokens, path)
    return tokens, merges, composes


def check_merges(merges: Merges, tokens: Sequence[str], path: epath.Path | Path) -> None:
    """Refuses a merge of pieces that the vocabulary lacks, as the library does."""
    known = set(tokens)
    for pair in merges:
        if missing := {*pair, "".join(pair)} - known:
            raise UserError(f"{path} has no {min(missing)!r}, which the merge of {pair} needs")


def ids_and_merges(content: dict[str, Any]) -> tuple[dict[str, int], Merges]:
    """Returns the ids of all tokens of a tokenizer.json with BPE, also the added ones; and merges.

    Both forms of merges occur: a pair, and one text with a space.
    """
    model = content["model"]
    ids = model["vocab"] | {t["content"]: t["id"] for t in content.get("added_tokens", ())}
    return ids, [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]


def _read_merges(path: epath.Path | Path) -> Merges:
    merges = []
    for number, line in enumerate(vocabulary_lines(read_vocabulary_file(path), path), 1):
        pair = tuple(line.rstrip("\r").split(" "))
        if line.startswith("#version") or not line:
            continue
        if len(pair) != 2:
            raise UserError(f"{path}:{number}: {line!r} must be two tokens with a space between")
        merges.append(pair)
    return merges


def _check_library_file(content: dict[str, Any], path: epath.Path | Path) -> bool:
    """Refuses a tokenizer.json with other rules; returns whether it composes text."""
    model, rules = content.get("model") or {}, content.get("pre_tokenizer") or {}
    normalizer = content.get("normalizer")
    wanted = {"type": "ByteLevel", "use_regex": True}
    is_bpe = model.get("type") == "BPE" and not model.get("ignore_merges")
    if (
        not is_bpe
        or normalizer not in (None, {"type": "NFC"})
        or (wanted | rules) != (rules | wanted)
    ):
        raise UserError(f"{path} is not a byte-level BPE with the rules of GPT-2")
    return normalizer is not None


def _library_content(ids: dict[str, int], merges: Merges) -> bytes:
    """Makes the parts of a tokenizer.json that `read_vocabulary` reads."""
    content = {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "use_regex": True},
        "model": {"type": "BPE", "vocab": ids, "merges": list(merges)},
    }
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"
