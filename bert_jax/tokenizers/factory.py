"""Loads saved tokenizers, makes them from vocabulary files, and trains new ones."""

from collections.abc import Iterable

from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.tokenizers import sentencepiece, training, wordpiece
from bert_jax.tokenizers.base import (
    CONVENTIONS,
    OPTIONS_FILE,
    SPECIAL_TOKENS,
    SpecialTokens,
    Tokenizer,
)

# The vocabulary file and the options of each kind.
_KINDS = {
    "wordpiece": (wordpiece.VOCABULARY_FILE, {"lowercase", "max_input_chars_per_word"}),
    "sentencepiece": (sentencepiece.MODEL_FILE, {"lowercase"}),
}
KINDS = tuple(_KINDS)


def load(directory: epath.PathLike, options_file: str = OPTIONS_FILE) -> Tokenizer:
    """Reads a directory that `Tokenizer.save` wrote.

    Raises:
      UserError: The directory has no tokenizer, or a damaged one.
    """
    directory = files.open_path(directory, "the tokenizer's directory")
    path = directory / options_file
    try:
        options = files.read_json(path)
    except FileNotFoundError:
        raise UserError(f"{directory} holds no tokenizer: {options_file} is missing") from None
    named = options.pop("special_tokens", "bert")
    if isinstance(named, str):
        special_tokens = CONVENTIONS[named]
    else:
        special_tokens = SpecialTokens(*(tuple(v) if isinstance(v, list) else v for v in named))
    kind = options.pop("kind", None)
    vocabulary_file, names = _KINDS.get(kind, ("", None))
    if options.keys() != names:
        raise UserError(
            f"{path} is damaged: it must have the `kind` of a tokenizer and its options"
        )
    vocabulary = directory / vocabulary_file
    return from_file(kind, vocabulary, special_tokens=special_tokens, **options)


def from_file(
    kind: str,
    path: epath.PathLike,
    *,
    lowercase: bool,
    max_input_chars_per_word: int = 200,
    special_tokens: SpecialTokens = SPECIAL_TOKENS,
) -> Tokenizer:
    """Makes a tokenizer from a vocab.txt (wordpiece) or .model (sentencepiece).

    Raises:
      UserError: The file cannot be used; see `read_vocabulary` and `read_model`.
    """
    if kind == "sentencepiece":
        model = sentencepiece.read_model(path, special_tokens)
        return sentencepiece.SentencePieceTokenizer(
            model, lowercase=lowercase, special_tokens=special_tokens
        )
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
    special_tokens: SpecialTokens = SPECIAL_TOKENS,
) -> Tokenizer:
    """Trains a vocabulary of exactly `vocab_size` entries.

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
            special_tokens=special_tokens,
        )
        return sentencepiece.SentencePieceTokenizer(
            model, lowercase=lowercase, special_tokens=special_tokens
        )
    return wordpiece.WordPieceTokenizer(
        training.train_wordpiece(
            texts, vocab_size=vocab_size, lowercase=lowercase, special_tokens=special_tokens
        ),
        lowercase=lowercase,
        max_input_chars_per_word=max_input_chars_per_word,
        special_tokens=special_tokens,
    )
