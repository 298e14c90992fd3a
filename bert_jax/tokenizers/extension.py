"""Adds tokens to a vocabulary. No other token changes its id.

The new tokens first take the places of the placeholders "[unused0]", ..., and then ids at the end.

* WordPiece gets whole words that it splits so far. A longer word that begins with a new token is
  split after it.
* SentencePiece's unigram models get whole words too. A new token stands for exactly the pieces that
  it replaces, in longer words too.
* Byte-level BPE gets further merges, which apply after all others, as if the training of the
  vocabulary had gone on with this text.

Only the vocabulary changes, so every program that can read the old one can read the new.
"""

import math
from collections.abc import Callable, Sequence

from tokenizers import AddedToken, pre_tokenizers

from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import (
    Tokenizer,
    is_placeholder,
    read_vocabulary_file,
    vocabulary_lines,
)
from bert_jax.tokenizers.factory import KINDS
from bert_jax.tokenizers.sentencepiece import SentencePieceTokenizer
from bert_jax.tokenizers.tokenizer_json import JsonTokenizer, content_of
from bert_jax.tokenizers.training import MIN_FREQUENCY, SHORT, learn_merges
from bert_jax.tokenizers.wordpiece import WordPieceTokenizer, WordSplitter

# Words, and how often each occurs.
WordCounts = Sequence[tuple[str, int]]
# The first of the characters that stand for tokens; none of them is white space.
_FIRST_CHARACTER = 0x10000


def is_number(add_tokens: str) -> bool:
    """Returns whether `config.data.add_tokens` is a number of tokens, not a file of words."""
    return add_tokens.isdecimal()


def extended_size(tokenizer: Tokenizer, add_tokens: str) -> int:
    """Returns the number of tokens after `extend`.

    Raises:
      UserError: The tokenizer or the file of words cannot be used.
    """
    if problem := _problem(tokenizer, add_tokens):
        raise UserError(
            f"config.data.add_tokens is {add_tokens}, but the vocabulary is of the kind "
            f"{tokenizer.kind}{problem}"
        )
    if not is_number(add_tokens):
        return len(_placed(tokenizer.tokens, _words_of_file(add_tokens, tokenizer)))
    return tokenizer.vocab_size + max(0, int(add_tokens) - tokenizer.num_unused)


def extend(tokenizer: Tokenizer, add_tokens: str, counts: WordCounts) -> Tokenizer:
    """Returns a tokenizer with more tokens; the same counts give the same tokens, in any order.

    Args:
      tokenizer: A tokenizer that `extended_size` accepts.
      add_tokens: See `config.data.add_tokens`. Of the words that WordPiece or SentencePiece splits,
        those are chosen that save most tokens of the text.
      counts: The words of the text.

    Raises:
      UserError: The text has too few words for that, or the file of words cannot be used.
    """
    if isinstance(tokenizer, JsonTokenizer):
        found, vocabulary = _with_merges(tokenizer, int(add_tokens), counts)
    else:
        if is_number(add_tokens):
            words = _words_that_save_most(tokenizer, counts)[: int(add_tokens)]
        else:
            words = _words_of_file(add_tokens, tokenizer)
        found, vocabulary = len(words), _placed(tokenizer.tokens, words)
        if isinstance(tokenizer, SentencePieceTokenizer):
            vocabulary = tokenizer.with_tokens(vocabulary)
    if is_number(add_tokens) and found < int(add_tokens):
        raise UserError(
            f"config.data.add_tokens is {add_tokens}, but the text has only {found} tokens to add "
            f"that occur {MIN_FREQUENCY} times: set it to {found} or less"
        )
    options = {k: x for k, x in tokenizer.options.items() if k not in ("kind", "special_tokens")}
    make = KINDS[tokenizer.kind].tokenizer
    extended = make(vocabulary, special_tokens=tokenizer.special_tokens, **options)
    # The text is no longer searched for placeholders that are gone.
    added = {i: token for i, token in tokenizer.added.items() if token.content in extended.ids}
    mask = AddedToken(tokenizer.special_tokens.mask, lstrip=tokenizer.mask_takes_space)
    return extended.with_added(added | {tokenizer.mask_id: mask}, "config.data.add_tokens")


def words_of(tokenizer: Tokenizer) -> Callable[[str], list[str]]:
    """Returns a function of a text that returns the words to count for `extend`."""
    if isinstance(tokenizer, SentencePieceTokenizer | JsonTokenizer):
        return tokenizer.words
    # The tokenizer maps longer words to [UNK].
    longest = tokenizer.options["max_input_chars_per_word"]
    split = WordSplitter(tokenizer.options["lowercase"]).split
    return lambda text: [word for word in split(text) if len(word) <= longest]


def pieces(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the ids of a token or word, given as the vocabulary spells it."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.word_pieces(text)
    return [piece.id for piece in tokenizer.library_model.tokenize(text)]


def replaced_pieces(tokenizer: Tokenizer, extended: Tokenizer) -> dict[int, list[int]] | None:
    """Returns the ids that each added token replaces, by its id.

    None if `extended` is not this tokenizer with added tokens.
    """
    old, new = tokenizer.tokens, extended.tokens
    changed = [i for i, token in enumerate(old) if new[i : i + 1] != [token]]
    if tokenizer.options != extended.options or not all(is_placeholder(old[i]) for i in changed):
        return None
    added = [*changed, *range(len(old), len(new))]
    return {i: pieces(tokenizer, new[i]) for i in added}


def tokens_per_word(tokenizer: Tokenizer, counts: WordCounts) -> float:
    """Returns the mean number of tokens of the words of a text."""
    total = sum(count * len(pieces(tokenizer, word)) for word, count in counts)
    return total / max(1, sum(count for _, count in counts))


def _problem(tokenizer: Tokenizer, add_tokens: str) -> str:
    """Returns why a vocabulary cannot get these tokens; an empty string if it can."""
    if tokenizer.kind == "byte_bpe":
        no_words = ", whose tokens are not words; give a number of tokens instead of a file"
        return "" if is_number(add_tokens) else no_words
    if tokenizer.vocab_size > tokenizer.num_model_tokens:
        return (
            f", whose last token, {tokenizer.tokens[-1]}, was added to it and would get another id"
        )
    if isinstance(tokenizer, SentencePieceTokenizer):
        if not tokenizer.is_unigram:
            return " and the type bpe; a model of the type unigram can get more tokens"
        last = tokenizer.special_tokens.last
        return f", whose last token, {last[-1]}, would get another id" if last else ""
    if tokenizer.kind == "wordpiece":
        return ""
    return "; only wordpiece, byte_bpe and sentencepiece can get more tokens"


def _placed(tokens: Sequence[str], new: Sequence[str]) -> list[str]:
    """Puts new tokens in the places of the placeholders, and the rest at the end."""
    placed = list(tokens)
    places = [i for i, token in enumerate(tokens) if is_placeholder(token)]
    for i, token in zip(places, new, strict=False):
        placed[i] = token
    return placed + list(new[len(places) :])


def _words_that_save_most(
    tokenizer: WordPieceTokenizer | SentencePieceTokenizer, counts: WordCounts
) -> list[str]:
    saved = []
    for word, count in counts:
        more = len(pieces(tokenizer, word)) - 1
        if more and count >= MIN_FREQUENCY:
            saved.append((-count * more, word))
    return [word for _, word in sorted(saved)]


def _words_of_file(path: str, tokenizer: WordPieceTokenizer | SentencePieceTokenizer) -> list[str]:
    """Reads a word from each line; words that are tokens already are left out."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        split, longest = tokenizer.words, math.inf
    else:
        split = WordSplitter(tokenizer.options["lowercase"]).split
        longest = tokenizer.options["max_input_chars_per_word"]
    words = {}
    try:
        lines = vocabulary_lines(read_vocabulary_file(path), path)
    except UserError as error:
        raise UserError(
            "config.data.add_tokens must be a number of tokens or a file with a word on each "
            f"line: {error}"
        ) from error
    for number, line in enumerate(lines, 1):
        found = split(line)
        if len(found) > 1 or any(len(x) > longest for x in found):
            raise UserError(
                f"config.data.add_tokens: {path}:{number}: {line.strip()!r} is not one word for "
                f"this tokenizer, which divides it into {' '.join(found)!r}"
            )
        words |= dict.fromkeys(found)
    return [word for word in words if word not in tokenizer.ids]


def _with_merges(tokenizer: JsonTokenizer, number: int, counts: WordCounts) -> tuple[int, str]:
    """Returns the number of tokens that were found, and a vocabulary with them."""
    old = tokenizer.tokens
    # The library joins characters, so each stands for a token.
    spelled = (
        ("".join(chr(_FIRST_CHARACTER + i) for i in pieces(tokenizer, word)), count)
        for word, count in counts
    )

    def token_of(characters: str) -> str:
        return "".join(old[ord(character) - _FIRST_CHARACTER] for character in characters)

    texts = [
        f"{word} " * min(1000, count - first)
        for word, count in spelled
        for first in range(0, count, 1000)
    ]
    alphabet = sorted(set().union(*texts) - {" "})
    # More than `number`, because some may be spelled as other tokens are.
    most = len(alphabet) + 2 * number
    splitter = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), SHORT])
    _, learned = learn_merges(texts, alphabet, most, splitter)
    new: dict[str, None] = {}
    merges = list(tokenizer.merges)
    for pair in learned:
        first, second = map(token_of, pair)
        if first + second not in tokenizer.ids:
            new[first + second] = None
        if len(new) > number:
            break
        merges.append((first, second))
    tokens = list(new)[:number]
    special, composes = tokenizer.special_tokens, tokenizer.normalizer is not None
    content = content_of("byte_bpe", _placed(old, tokens), merges, special, composes=composes)
    return len(tokens), content
