"""Makes tokenizers: saved ones, ones of given vocabularies, and newly trained ones."""

import json
from collections.abc import Iterable

from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.tokenizers import sentencepiece, training, wordpiece
from bert_jax.tokenizers.base import OPTIONS_FILE, Tokenizer

KINDS = ("wordpiece", "sentencepiece")
# The options of each kind and their types.
_OPTIONS = {
    "wordpiece": {"lowercase": bool, "max_input_chars_per_word": int},
    "sentencepiece": {"lowercase": bool},
}


def load(directory: epath.PathLike, options_file: str = OPTIONS_FILE) -> Tokenizer:
    """Reads a directory that `Tokenizer.save` wrote.

    Raises:
      UserError: The directory has no tokenizer, or a damaged one.
    """
    directory = files.open_path(directory, "the tokenizer's directory")
    path = directory / options_file
    try:
        options = json.loads(path.read_bytes())
        kind = options.pop("kind")
    except FileNotFoundError:
        raise UserError(f"{directory} holds no tokenizer: {options_file} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is damaged: it should be a JSON object with a `kind`") from None
    check_kind(kind)
    types = {name: type(value) for name, value in options.items()}
    if types != _OPTIONS[kind]:
        wanted = ", ".join(f"`{name}` ({t.__name__})" for name, t in _OPTIONS[kind].items())
        raise UserError(f"{path} is damaged: beside `kind` it should have {wanted}, no more")
    if kind == "wordpiece":
        tokens = wordpiece.read_vocabulary(directory / wordpiece.VOCABULARY_FILE)
        return wordpiece.WordPieceTokenizer(tokens, **options)
    model = sentencepiece.read_model(directory / sentencepiece.MODEL_FILE)
    return sentencepiece.SentencePieceTokenizer(model, **options)


def from_file(
    kind: str, path: epath.PathLike, *, lowercase: bool, max_input_chars_per_word: int
) -> Tokenizer:
    """Makes a tokenizer of a user's vocab.txt (wordpiece) or .model (sentencepiece).

    Raises:
      UserError: The file cannot be used; see `read_vocabulary` and `read_model`.
    """
    if kind == "sentencepiece":
        model = sentencepiece.read_model(path)
        return sentencepiece.SentencePieceTokenizer(model, lowercase=lowercase)
    return wordpiece.WordPieceTokenizer(
        wordpiece.read_vocabulary(path),
        lowercase=lowercase,
        max_input_chars_per_word=max_input_chars_per_word,
    )


def train(
    kind: str,
    texts: Iterable[str],
    *,
    vocab_size: int,
    lowercase: bool,
    max_input_chars_per_word: int,
    sentencepiece_type: str,
) -> Tokenizer:
    """Trains a vocabulary of exactly `vocab_size` entries, the special tokens first.

    The same texts in the same order give the same vocabulary, byte for byte. All texts together
    must fit in memory; `bert_jax.prepare` draws a sample.

    Args:
      texts: Sentences or short paragraphs.
      sentencepiece_type: "unigram" or "bpe".

    Raises:
      UserError: The corpus or the size makes that impossible.
    """
    if kind == "sentencepiece":
        model = training.train_sentencepiece(
            texts, vocab_size=vocab_size, lowercase=lowercase, model_type=sentencepiece_type
        )
        return sentencepiece.SentencePieceTokenizer(model, lowercase=lowercase)
    return wordpiece.WordPieceTokenizer(
        training.train_wordpiece(texts, vocab_size=vocab_size, lowercase=lowercase),
        lowercase=lowercase,
        max_input_chars_per_word=max_input_chars_per_word,
    )


def check_kind(kind: str) -> None:
    """Raises UserError unless `kind` is one of KINDS."""
    if kind not in KINDS:
        raise UserError(f"config.data.tokenizer is {kind!r}; it must be one of {', '.join(KINDS)}")
