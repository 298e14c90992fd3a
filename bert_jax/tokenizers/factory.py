"""Loads saved tokenizers, and makes them from vocabulary files."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from bert_jax.base import files
from bert_jax.tokenizers import bpe, protein, sentencepiece, word_bpe, wordpiece
from bert_jax.tokenizers.added import ADDED_FILE, read_added
from bert_jax.tokenizers.base import (
    CONVENTIONS,
    OPTIONS_FILE,
    SPECIAL_TOKENS,
    SpecialTokens,
    Tokenizer,
)
from bert_jax.tokenizers.bpe import LIBRARY_FILE, JsonTokenizer


class _Kind(NamedTuple):
    """A kind of tokenizer.

    Attributes:
      tokenizer: Makes a tokenizer from a vocabulary and options.
      read: Reads a vocabulary from its files.
      options: The names of the options, with their defaults.
      names: The names that a vocabulary file may have; `Tokenizer.save` writes the first.
      companion: The name of a second file that belongs to a file with the last name.
    """

    tokenizer: Callable[..., Tokenizer]
    read: Callable[..., Any]
    options: Mapping[str, Any]
    names: tuple[str, ...]
    companion: str = ""

    def own(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Selects the options of this kind; missing ones get their defaults."""
        return {key: options.get(key, default) for key, default in self.options.items()}


KINDS = {
    "wordpiece": _Kind(
        wordpiece.WordPieceTokenizer,
        wordpiece.read_vocabulary,
        {"lowercase": False, "max_input_chars_per_word": 200},
        (wordpiece.VOCABULARY_FILE,),
    ),
    "sentencepiece": _Kind(
        sentencepiece.SentencePieceTokenizer,
        sentencepiece.read_model,
        {"lowercase": False, "sentencepiece_rules": "plain"},
        (sentencepiece.MODEL_FILE, "sentencepiece.bpe.model", "spiece.model", LIBRARY_FILE),
    ),
    "byte_bpe": _Kind(
        partial(JsonTokenizer, kind="byte_bpe"),
        partial(bpe.read_vocabulary, "byte_bpe"),
        {"add_prefix_space": False},
        (LIBRARY_FILE, bpe.VOCABULARY_FILE),
        bpe.MERGES_FILE,
    ),
    "fastbpe": _Kind(
        word_bpe.FastBpeTokenizer,
        lambda *paths, special_tokens: word_bpe.read_fastbpe(*paths),
        {},
        (word_bpe.FASTBPE_FILE,),
        word_bpe.CODES_FILE,
    ),
    "tokenizer_json": _Kind(
        partial(JsonTokenizer, kind="tokenizer_json"),
        partial(bpe.read_vocabulary, "tokenizer_json"),
        {},
        (LIBRARY_FILE,),
    ),
    "protein": _Kind(
        protein.ProteinTokenizer,
        protein.read_vocabulary,
        {},
        (protein.VOCABULARY_FILE, LIBRARY_FILE),
    ),
    "moses_bpe": _Kind(
        word_bpe.MosesBpeTokenizer,
        word_bpe.read_moses,
        {"lowercase": False},
        (word_bpe.MOSES_FILE,),
        word_bpe.MERGES_FILE,
    ),
    "bert_bpe": _Kind(
        partial(JsonTokenizer, kind="bert_bpe"),
        partial(bpe.read_vocabulary, "bert_bpe"),
        {},
        (LIBRARY_FILE, bpe.VOCABULARY_FILE),
        bpe.MERGES_FILE,
    ),
}


def load(directory: epath.PathLike) -> Tokenizer:
    """Reads a directory that `Tokenizer.save` wrote."""
    directory = files.checked_path(directory, "the tokenizer's directory")
    path = directory / OPTIONS_FILE
    options = files.read_json(path)
    with files.naming(path):
        special_tokens = CONVENTIONS[options.pop("special_tokens", "bert")]
        return from_file(path=directory, special_tokens=special_tokens, **options)


def vocabulary_files(kind: str, path: Path | epath.Path) -> list[Path | epath.Path]:
    """Finds the files of a vocabulary, the main file first, and ADDED_FILE last if there is one.

    Args:
      path: The main file, or a directory that has it under one of its usual names.
    """
    known = KINDS[kind]
    if path.is_dir():
        path = next((path / n for n in known.names if (path / n).exists()), path / known.names[0])
    is_last = path.name == known.names[-1] or len(known.names) == 1
    has_companion = known.companion and is_last
    added = path.parent / ADDED_FILE
    return [
        path,
        *([path.parent / known.companion] if has_companion else []),
        *([added] if added.exists() else []),
    ]


def from_file(
    kind: str,
    path: epath.PathLike,
    *,
    special_tokens: SpecialTokens = SPECIAL_TOKENS,
    **options: Any,
) -> Tokenizer:
    """Makes a tokenizer from the files of its vocabulary.

    Args:
      kind: One of KINDS.
      path: A directory with the files, or a single file: a vocab.txt (wordpiece); a .model, or a
        tokenizer.json with a Unigram model (sentencepiece); a vocab.json with merges.txt beside
        it, or a tokenizer.json (byte_bpe); a vocab.txt with bpe.codes beside it (fastbpe); a
        vocab.json with merges.txt beside it (moses_bpe and bert_bpe), or a tokenizer.json
        (bert_bpe, tokenizer_json). ADDED_FILE beside it belongs to it, and so do the added tokens
        of a tokenizer.json.
      options: Options of any kind; this kind ignores those that it does not have.
    """
    known = KINDS[kind]
    paths = vocabulary_files(kind, files.checked_path(path, "the vocabulary"))
    source = paths.pop() if paths[-1].name == ADDED_FILE else paths[0]
    with files.naming(" and ".join(map(str, paths))):
        vocabulary = known.read(*paths, special_tokens=special_tokens)
        added = read_added(source) if source.name in (ADDED_FILE, LIBRARY_FILE) else {}
    tokenizer = known.tokenizer(vocabulary, special_tokens=special_tokens, **known.own(options))
    tokenizer = tokenizer.with_added(added, source)
    with files.naming(source):
        # Some rules of a tokenizer.json fail only when they are used.
        tokenizer.encode_batch(["Any text, 1 été 中"])
    return tokenizer
