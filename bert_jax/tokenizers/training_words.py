"""Splits text into the words whose counts a vocabulary is trained on."""

import functools
import re
from collections.abc import Callable

from tokenizers import pre_tokenizers

from bert_jax.tokenizers.base import CACHE_WORDS
from bert_jax.tokenizers.moses_bpe import moses_words
from bert_jax.tokenizers.tokenizer_json import ASCII_WORDS
from bert_jax.tokenizers.wordpiece import WordSplitter

WordsOfText = Callable[[str], list[str]]
# Longer runs without a space are cut to train byte-level BPE, whose time is quadratic in them.
_LONG_RUN = re.compile(r"\S{200}(?=\S)")
# Longer words are left out of the training of moses_bpe and bert_bpe, for the same reason.
_LONGEST_WORD = 200


def wordpiece_words(*, lowercase: bool, max_input_chars_per_word: int) -> WordsOfText:
    """Returns a function of a text that returns its words.

    Words of more than `max_input_chars_per_word` characters are left out, because the tokenizer
    maps them to [UNK].
    """
    split, longest = WordSplitter(lowercase).split, max_input_chars_per_word
    return lambda text: [word for word in split(text) if len(word) <= longest]


def byte_bpe_words(*, add_prefix_space: bool) -> WordsOfText:
    """Returns a function of a text that returns its words, with a character for each byte."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space).pre_tokenize_str
    of_bytes = functools.lru_cache(CACHE_WORDS)(
        lambda word: pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(word)[0][0]
    )

    def words(text: str) -> list[str]:
        found: list[str] = []
        for part in without_long_runs(text):
            if part.isascii():
                if add_prefix_space and part and part[0] != " ":
                    part = f" {part}"
                found += map(of_bytes, ASCII_WORDS.findall(part))
            else:
                found += (word for word, _ in split(part))
        return found

    return words


def moses_bpe_words(*, lowercase: bool) -> WordsOfText:
    """Returns a function of a text that returns its words of up to 200 characters."""
    split = moses_words(lowercase=lowercase)
    return lambda text: [word for word in split(text) if len(word) <= _LONGEST_WORD]


def bert_bpe_words() -> WordsOfText:
    """Returns a function of a text that returns BERT's words of up to 200 characters, cased."""
    return wordpiece_words(lowercase=False, max_input_chars_per_word=_LONGEST_WORD)


def without_long_runs(text: str) -> list[str]:
    """Returns a text in parts that have no long run without a space."""
    return _LONG_RUN.sub("\\g<0>\n", text).split("\n") if _LONG_RUN.search(text) else [text]
