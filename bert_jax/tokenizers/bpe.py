"""BPE by the rules of a tokenizer.json, on the `tokenizers` library.

The file has the pieces, the merges, and the rules that split a text, so no class of `transformers`
is needed. The ids are those of the library, except that the five special tokens spelled out in the
text are plain text here. Three kinds differ in where the file comes from:

* byte_bpe (GPT-2, RoBERTa, ModernBERT): trained here, converted from a vocab.json and a merges.txt,
  or given. GPT-2's regular expression splits text into words, each with the space before it. Tokens
  consist of bytes, so any text can be encoded; "Ġ" is the space. The option `add_prefix_space` puts
  a space before a text that does not begin with one. It is off by default, as in RoBERTa: fairseq's
  examples/roberta/multiprocessing_bpe_encoder.py encodes each line as it is, so the first word of a
  line has no "Ġ".
* bert_bpe (HerBERT): likewise. Words are those of `wordpiece.WordSplitter` without lower-casing,
  and the last piece of a word ends with "</w>". The ids equal those of `transformers`'
  HerbertTokenizer of version 5 and HerbertTokenizerFast of version 4, except for the rare
  characters that `wordpiece` lists. The slow class of version 4 does not split CJK characters off.
* tokenizer_json (mmBERT, which has Gemma 2's): given.
"""

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import Kind, Tokenizer, WordCache
from bert_jax.tokenizers.special_tokens import SpecialTokens
from bert_jax.tokenizers.vocabularies import (
    LIBRARY_FILE,
    read_merges,
    require_special_tokens,
    tokens_by_id,
)
from bert_jax.tokenizers.word_bpe import END, Merges
from bert_jax.tokenizers.wordpiece import WordSplitter

VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
BYTE_SPACE = "Ġ"
# GPT-2's regular expression (openai/gpt-2, encoder.py) for ASCII text, for which Python's character
# classes equal the library's.
ASCII_WORDS = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII
)
_bert_words = WordSplitter(lowercase=False).split


class JsonTokenizer(Tokenizer):
    """A tokenizer of the library; see `Tokenizer`.

    Args:
      content: A tokenizer.json without added tokens and without what surrounds a text.
      kind: "byte_bpe", "bert_bpe" or "tokenizer_json".
      options: `add_prefix_space` of byte_bpe, in place of the file's.
    """

    def __init__(self, content: str, *, kind: str, special_tokens: SpecialTokens, **options: bool):
        rules = json.loads(content)
        # With a dropout of merges, the ids of a text would be random.
        rules["model"]["dropout"] = None
        if (rules["pre_tokenizer"] or {}).get("type") == "ByteLevel":
            rules["pre_tokenizer"] |= options
        self._backend = tokenizers.Tokenizer.from_str(json.dumps(rules))
        self._content = self._backend.to_str()
        rules = json.loads(self._content)
        self.kind, self.merges = kind, [tuple(pair) for pair in rules["model"]["merges"]]
        self._is_byte_level = (rules["decoder"] or {}).get("type") == "ByteLevel"
        self.word_end = rules["model"]["end_of_word_suffix"] or ""
        if not self.word_end:
            self.word_start = BYTE_SPACE if self._is_byte_level else "▁"
        self.library_model = self._backend.model
        is_spaced = (rules["pre_tokenizer"] or {}).get("add_prefix_space")
        self._prefix = " " if is_spaced else ""
        if self._prefix:
            # Words are tokenized one by one, and only the first gets a space.
            self._backend.pre_tokenizer.add_prefix_space = False
        self._is_gpt2, self._is_bert = _is_gpt2(rules), _is_bert(rules)
        self._word_ids = WordCache(self._ids_of_word)
        tokens = tokens_by_id(self._backend.get_vocab())
        stored = self._content.encode() + b"\n"
        super().__init__(options, stored, {LIBRARY_FILE: stored}, tokens, special_tokens)

    def library(self) -> tokenizers.Tokenizer:
        """Returns a new tokenizer of the library, without added tokens."""
        return tokenizers.Tokenizer.from_str(self._content)

    @property
    def normalizer(self) -> normalizers.Normalizer | None:
        return self._backend.normalizer

    def words(self, text: str) -> list[str]:
        text = self._with_space(self.normalizer.normalize_str(text) if self.normalizer else text)
        return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(text)]

    def word_pieces(self, word: str) -> list[int]:
        return [piece.id for piece in self.library_model.tokenize(word)]

    def is_word_start(self, token: str) -> bool:
        return token.startswith(self.word_start) or token in self.special_tokens.spellings

    def _encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        return [np.array(self._encode(self._with_space(s)), np.int32) for s in sentences]

    def _encode(self, text: str) -> list[int]:
        # A cache of words is four times as fast as the library.
        if self._is_gpt2 and text.isascii():
            words = ASCII_WORDS.findall(text)
        elif self._is_bert:
            words = _bert_words(text)
        else:
            return self._backend.encode(text).ids
        return [i for word in words for i in self._word_ids[word]]

    def _ids_of_word(self, word: str) -> list[int]:
        return self._backend.encode(word).ids

    def _with_space(self, text: str) -> str:
        return text if not text or text.startswith(" ") else f"{self._prefix}{text}"

    def id_to_token(self, token_id: int) -> str:
        """See `Tokenizer`. A token with an incomplete character is returned as stored."""
        if not self._is_byte_level:
            return self.tokens[token_id]
        text = self.decode([token_id])
        return self.tokens[token_id] if "\ufffd" in text else text.replace(" ", BYTE_SPACE)

    def _encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        spaced = self._with_space(text)
        num_added = len(spaced) - len(text)
        encoded, spans = self._backend.encode(spaced), []
        for start, end in encoded.offsets:
            start, end = max(0, start - num_added), end - num_added
            # Spans begin after white space, except those of pieces that have nothing else.
            first = end - len(text[start:end].lstrip())
            spans.append((first if first < end else start, end))
        return np.array(encoded.ids, np.int32), np.array(spans, np.int32).reshape(-1, 2)

    def decode(self, ids: Sequence[int]) -> str:
        whole = {*self.special_ids, *self.added}
        tokens = [self.tokens[i] + (self.word_end if i in whole else "") for i in ids]
        return self._backend.decoder.decode(tokens) if self._backend.decoder else " ".join(tokens)


def _is_gpt2(rules: dict[str, Any]) -> bool:
    """Returns whether a tokenizer.json splits text as GPT-2 does; it may compose it first (NFC)."""
    splitter = rules["pre_tokenizer"] or {}
    is_split = splitter.get("type") == "ByteLevel" and splitter["use_regex"]
    is_plain = not rules["model"]["end_of_word_suffix"]
    return is_split and is_plain and rules["normalizer"] in (None, {"type": "NFC"})


def _is_bert(rules: dict[str, Any]) -> bool:
    """Returns whether a tokenizer.json splits text as HerBERT does, as `_bert_words`."""
    cased = {"clean_text": True, "handle_chinese_chars": True, "lowercase": False}
    normalizer = rules["normalizer"] or {}
    return (
        rules["model"]["end_of_word_suffix"] == END
        and rules["pre_tokenizer"] == {"type": "BertPreTokenizer"}
        and normalizer | cased == normalizer
        and not normalizer["strip_accents"]
    )


def content_of(
    kind: str,
    tokens: Sequence[str],
    merges: Merges,
    special_tokens: SpecialTokens,
    *,
    composes: bool = False,
) -> str:
    """Returns the tokenizer.json of a vocabulary.

    Args:
      kind: "byte_bpe" or "bert_bpe".
      tokens: The tokens in the order of their ids.
      merges: The pairs of tokens to join, in order of priority.
      composes: Whether byte_bpe first composes the text (NFC).
    """
    ids, unk = {token: i for i, token in enumerate(tokens)}, special_tokens.unk
    if kind == "byte_bpe":
        library = tokenizers.Tokenizer(models.BPE(ids, list(merges), unk_token=unk))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        if composes:
            library.normalizer = normalizers.NFC()
    else:
        model = models.BPE(ids, list(merges), unk_token=unk, end_of_word_suffix=END)
        library = tokenizers.Tokenizer(model)
        library.normalizer = normalizers.BertNormalizer(lowercase=False)
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        library.decoder = decoders.BPEDecoder(suffix=END)
    return library.to_str()


def read_vocabulary(
    kind: str,
    path: epath.Path | Path,
    merges_path: epath.Path | Path | None = None,
    *,
    special_tokens: SpecialTokens,
) -> str:
    """Reads a vocabulary as the content of a `JsonTokenizer`.

    Args:
      kind: "byte_bpe", "bert_bpe" or "tokenizer_json".
      path: A tokenizer.json, or a vocab.json of the other two kinds.
      merges_path: The merges.txt of a vocab.json.
    """
    content = json.loads(files.read_whole(path))
    if merges_path:
        tokens, merges = tokens_by_id(content), read_merges(merges_path)
        result = content_of(kind, tokens, merges, special_tokens)
    else:
        result = _from_library_file(kind, content, path, special_tokens)
    tokens = tokens_by_id(json.loads(result)["model"]["vocab"])
    require_special_tokens(tokens, special_tokens, path)
    return result


def _from_library_file(
    kind: str,
    content: dict[str, Any],
    path: epath.Path | Path,
    special_tokens: SpecialTokens,
) -> str:
    """Returns a tokenizer.json without what surrounds a text, and without added tokens.

    Special tokens become pieces, and so do added tokens with lower ids than these. Programs write
    the rules of byte_bpe and bert_bpe in several ways, which here become one.
    """
    model = content.get("model")
    # Pieces that need no merges, as in Llama 3, are rules that only tokenizer_json keeps.
    has_only_merges = isinstance(model, dict) and not model.get("ignore_merges")
    is_bpe = isinstance(model, dict) and model.get("type") == "BPE"
    if not is_bpe or not (has_only_merges or kind == "tokenizer_json"):
        raise UserError(f"{path} has no BPE model that joins pieces by merges only")
    if prefix := model.get("continuing_subword_prefix"):
        raise UserError(f"{path}: continuing_subword_prefix is {prefix!r}; it must be empty")
    added = {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
    last = max((i for token, i in added.items() if token in special_tokens.names), default=-1)
    model["vocab"].update({token: i for token, i in added.items() if i <= last})
    tokens_by_id(model["vocab"])  # The library would abort the process for an id of billions.
    model["dropout"] = None
    others = ("post_processor", "truncation", "padding")
    content |= {"added_tokens": []} | dict.fromkeys(others)
    result = tokenizers.Tokenizer.from_str(json.dumps(content)).to_str()
    if kind == "tokenizer_json":
        return result
    rules = json.loads(result)
    if not (_is_gpt2 if kind == "byte_bpe" else _is_bert)(rules):
        raise UserError(
            f"{path} has other rules than {kind}; data.tokenizer=tokenizer_json takes any BPE"
        )
    return content_of(
        kind,
        tokens_by_id(rules["model"]["vocab"]),
        [tuple(pair) for pair in rules["model"]["merges"]],
        special_tokens,
        composes=kind == "byte_bpe" and rules["normalizer"] is not None,
    )


BYTE_BPE = Kind(
    functools.partial(JsonTokenizer, kind="byte_bpe"),
    functools.partial(read_vocabulary, "byte_bpe"),
    {"add_prefix_space": False},
    (LIBRARY_FILE, VOCABULARY_FILE),
    MERGES_FILE,
)
BERT_BPE = Kind(
    functools.partial(JsonTokenizer, kind="bert_bpe"),
    functools.partial(read_vocabulary, "bert_bpe"),
    {},
    (LIBRARY_FILE, VOCABULARY_FILE),
    MERGES_FILE,
)
TOKENIZER_JSON = Kind(
    functools.partial(JsonTokenizer, kind="tokenizer_json"),
    functools.partial(read_vocabulary, "tokenizer_json"),
    {},
    (LIBRARY_FILE,),
)
