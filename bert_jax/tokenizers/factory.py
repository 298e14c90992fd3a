"""Loads saved tokenizers, makes them from vocabulary files, and trains new ones."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tokenizers import byte_bpe, fastbpe, sentencepiece, training, wordpiece
from bert_jax.tokenizers.base import (
    CONVENTIONS,
    OPTIONS_FILE,
    SPECIAL_TOKENS,
    SpecialTokens,
    Tokenizer,
)

LIBRARY_FILE = "tokenizer.json"


class _Kind(NamedTuple):
    """The files and options of a kind of tokenizer.

    Attributes:
      names: The names that a vocabulary file may have; `Tokenizer.save` writes the first.
      options: The names of the options.
      optional: Further options, which are stored only if they differ from their defaults.
      companion: The name of a second file that belongs to a file with the first name.
    """

    names: tuple[str, ...]
    options: frozenset[str]
    optional: frozenset[str] = frozenset()
    companion: str = ""


KINDS = {
    "wordpiece": _Kind(
        (wordpiece.VOCABULARY_FILE,), frozenset({"lowercase", "max_input_chars_per_word"})
    ),
    "sentencepiece": _Kind(
        (sentencepiece.MODEL_FILE, "sentencepiece.bpe.model", "spiece.model", LIBRARY_FILE),
        frozenset({"lowercase"}),
        optional=frozenset({"sentencepiece_rules"}),
    ),
    "byte_bpe": _Kind(
        (byte_bpe.VOCABULARY_FILE, LIBRARY_FILE),
        frozenset({"add_prefix_space"}),
        companion=byte_bpe.MERGES_FILE,
    ),
    "fastbpe": _Kind((fastbpe.VOCABULARY_FILE,), frozenset(), companion=fastbpe.CODES_FILE),
}


# The keys of a tokenizer's options file, with examples of their values.
_EXAMPLE = {
    "kind": "",
    "lowercase?": True,
    "max_input_chars_per_word?": 0,
    "sentencepiece_rules?": "",
    "add_prefix_space?": True,
}


def load(directory: epath.PathLike) -> Tokenizer:
    """Reads a directory that `Tokenizer.save` wrote.

    Raises:
      UserError: The directory has no tokenizer, or a damaged one.
    """
    directory = files.open_path(directory, "the tokenizer's directory")
    path = directory / OPTIONS_FILE
    try:
        options = files.read_json(path, _EXAMPLE)
    except FileNotFoundError:
        raise UserError(f"{directory} holds no tokenizer: {OPTIONS_FILE} is missing") from None
    options = {key: value for key, value in options.items() if value is not None}
    named = options.pop("special_tokens", "bert")
    if isinstance(named, str):
        special_tokens = CONVENTIONS.get(named)
    else:
        try:
            special_tokens = SpecialTokens(*(tuple(v) if isinstance(v, list) else v for v in named))
        except TypeError:
            special_tokens = None
    kind = options.pop("kind", None)
    known = KINDS.get(kind)
    if not known or not special_tokens or options.keys() - known.optional != known.options:
        raise UserError(
            f"{path} is damaged: it must have the `kind` of a tokenizer and its options"
        )
    return from_file(kind, directory, special_tokens=special_tokens, **options)


def vocabulary_files(kind: str, path: Path | epath.Path) -> list[Path | epath.Path]:
    """Returns the files of a vocabulary, the main file first.

    Args:
      kind: One of KINDS.
      path: The main file, or a directory that has it under one of its usual names.
    """
    known = KINDS[kind]
    if path.is_dir():
        path = next((path / n for n in known.names if (path / n).exists()), path / known.names[0])
    has_companion = known.companion and path.name == known.names[0]
    return [path, path.parent / known.companion] if has_companion else [path]


def from_file(
    kind: str,
    path: epath.PathLike,
    *,
    lowercase: bool = False,
    max_input_chars_per_word: int = 200,
    sentencepiece_rules: str = "plain",
    add_prefix_space: bool = False,
    special_tokens: SpecialTokens = SPECIAL_TOKENS,
) -> Tokenizer:
    """Makes a tokenizer from the files of its vocabulary.

    Args:
      kind: One of KINDS.
      path: A directory with the files, or a single file: a vocab.txt (wordpiece); a .model, or a
        tokenizer.json with a Unigram model (sentencepiece); a vocab.json with merges.txt beside
        it, or a tokenizer.json (byte_bpe); a vocab.txt with bpe.codes beside it (fastbpe).
      lowercase, max_input_chars_per_word, sentencepiece_rules, add_prefix_space: Options; each
        kind ignores those that it does not have.

    Raises:
      UserError: A file cannot be used; see `read_vocabulary` and `read_model`.
    """
    path, *companions = vocabulary_files(kind, files.open_path(path, "the vocabulary"))
    if kind == "sentencepiece":
        return sentencepiece.SentencePieceTokenizer(
            sentencepiece.read_model(path, special_tokens),
            lowercase=lowercase,
            sentencepiece_rules=sentencepiece_rules,
            special_tokens=special_tokens,
        )
    if kind == "byte_bpe":
        return byte_bpe.ByteBpeTokenizer(
            *byte_bpe.read_vocabulary(path, *companions, special_tokens=special_tokens),
            add_prefix_space=add_prefix_space,
            special_tokens=special_tokens,
        )
    if kind == "fastbpe":
        return fastbpe.read_tokenizer(path, *companions, special_tokens)
    return wordpiece.WordPieceTokenizer(
        wordpiece.read_vocabulary(path, special_tokens),
        lowercase=lowercase,
        max_input_chars_per_word=max_input_chars_per_word,
        special_tokens=special_tokens,
    )


def train(
    kind: str,
    texts: Iterable[str],
    *,
    vocab_size: int,
    lowercase: bool,
    max_input_chars_per_word: int,
    sentencepiece_type: str,
    sentencepiece_rules: str = "plain",
    add_prefix_space: bool = False,
    special_tokens: SpecialTokens = SPECIAL_TOKENS,
) -> Tokenizer:
    """Trains a tokenizer of any kind but fastbpe, with exactly `vocab_size` entries.

    The same texts in the same order give the same vocabulary, byte for byte. All texts together
    must fit in memory; `bert_jax.prepare` draws a sample.

    Args:
      texts: Sentences or short paragraphs.
      sentencepiece_type: "unigram" or "bpe".
      special_tokens: Defines the first and the last entries.

    Raises:
      UserError: The corpus does not allow a vocabulary of this size.
    """
    if kind == "sentencepiece":
        model = training.train_sentencepiece(
            texts,
            vocab_size=vocab_size,
            lowercase=lowercase,
            model_type=sentencepiece_type,
            rules=sentencepiece_rules,
            special_tokens=special_tokens,
        )
        return sentencepiece.SentencePieceTokenizer(
            model,
            lowercase=lowercase,
            sentencepiece_rules=sentencepiece_rules,
            special_tokens=special_tokens,
        )
    if kind == "byte_bpe":
        vocabulary = training.train_byte_bpe(
            texts,
            vocab_size=vocab_size,
            add_prefix_space=add_prefix_space,
            special_tokens=special_tokens,
        )
        return byte_bpe.ByteBpeTokenizer(
            *vocabulary, add_prefix_space=add_prefix_space, special_tokens=special_tokens
        )
    return wordpiece.WordPieceTokenizer(
        training.train_wordpiece(
            texts,
            vocab_size=vocab_size,
            lowercase=lowercase,
            max_input_chars_per_word=max_input_chars_per_word,
            special_tokens=special_tokens,
        ),
        lowercase=lowercase,
        max_input_chars_per_word=max_input_chars_per_word,
        special_tokens=special_tokens,
    )
