"""What a vocabulary with added tokens has. No other token changes its id.

The new tokens first take the places of the placeholders "[unused0]", ..., and then ids at the end.
`training.extend` chooses them:

* WordPiece gets whole words that it splits so far. A longer word that begins with a new token is
  split after it.
* SentencePiece's unigram models get whole words too. A new token stands for exactly the pieces that
  it replaces, in longer words too.
* Byte-level BPE gets further merges, which apply after all others, as if the training of the
  vocabulary had gone on with this text.

Only the vocabulary changes, so every program that can read the old one can read the new.

Markers are another case: `with_markers` gives them ids at the end, and they are found before a text
is split.
"""

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import Tokenizer
from bert_jax.tokenizers.vocabularies import is_placeholder, vocabulary_lines


def is_number(add_tokens: str) -> bool:
    """Returns whether `config.data.add_tokens` is a number of tokens, not a file of words."""
    return add_tokens.isdecimal()


def extended_size(tokenizer: Tokenizer, add_tokens: str) -> int:
    """Returns the number of tokens after `training.extend`, which this kind must allow."""
    if not _can_be_extended(tokenizer, add_tokens):
        raise UserError(
            f"config.data.add_tokens is {add_tokens}, but the vocabulary ({tokenizer.kind}) cannot "
            "get such tokens: byte_bpe can get a number of tokens, not words; wordpiece and "
            "sentencepiece of the type unigram can get both if no other token follows their pieces"
        )
    if not is_number(add_tokens):
        return len(placed(tokenizer.tokens, words_of_file(add_tokens, tokenizer)))
    return tokenizer.vocab_size + max(0, int(add_tokens) - tokenizer.num_unused)


def with_markers(tokenizer: Tokenizer, markers: Iterable[str]) -> Tokenizer:
    """Returns the tokenizer with the markers as tokens; see `Tokenizer.with_added`.

    A marker that is encoded as one token already stays as it is.
    """
    added: dict[int, AddedToken] = {}
    for marker in dict.fromkeys(markers):
        ids = tokenizer.encode_batch([marker])[0].tolist()
        if len(ids) != 1 or ids == [tokenizer.unk_id]:
            # A token of the vocabulary that no text gives, such as "[unused0]", keeps its id.
            next_id = max([tokenizer.vocab_size, *(i + 1 for i in added)])
            added[tokenizer.ids.get(marker, next_id)] = AddedToken(marker, normalized=False)
    if not added:
        return tokenizer
    mask, takes_space = tokenizer.special_tokens.mask, tokenizer.mask_takes_space
    own = {tokenizer.mask_id: AddedToken(mask, lstrip=takes_space, special=True)}
    return tokenizer.with_added(own | tokenizer.added | added, "the markers")


def replaced_pieces(tokenizer: Tokenizer, extended: Tokenizer) -> dict[int, Sequence[int]] | None:
    """Returns the ids that each added token replaces, by its id.

    A marker has all ids, so that its embedding becomes their mean. None if `extended` is not this
    tokenizer with added tokens.
    """
    old, new = tokenizer.tokens, extended.tokens
    changed = [i for i, token in enumerate(old) if new[i : i + 1] != [token]]
    if tokenizer.options != extended.options or not all(is_placeholder(old[i]) for i in changed):
        return None
    added = [*changed, *range(len(old), len(new))]
    return {
        i: range(len(old)) if i in extended.added else tokenizer.word_pieces(new[i]) for i in added
    }


def words_of_file(path: str, tokenizer: Tokenizer) -> list[str]:
    """Reads a word from each line; words that are tokens already are left out."""
    words: dict[str, None] = {}
    try:
        lines = vocabulary_lines(files.checked_path(path, "data.add_tokens"))
    except OSError as error:
        raise UserError(f"config.data.add_tokens: {error}") from None
    for number, line in enumerate(lines, 1):
        found = tokenizer.words(line)
        if line.strip() and len(found) != 1:
            raise UserError(
                f"config.data.add_tokens: {path}:{number}: {line.strip()!r} is not one word for "
                f"this tokenizer, which divides it into {' '.join(found)!r}"
            )
        words |= dict.fromkeys(found)
    return [word for word in words if word not in tokenizer.ids]


def placed(tokens: Sequence[str], new: Sequence[str]) -> list[str]:
    """Puts new tokens in the places of the placeholders, and the rest at the end."""
    placed = list(tokens)
    places = [i for i, token in enumerate(tokens) if is_placeholder(token)]
    for i, token in zip(places, new, strict=False):
        placed[i] = token
    return placed + list(new[len(places) :])


def _can_be_extended(tokenizer: Tokenizer, add_tokens: str) -> bool:
    if tokenizer.kind == "byte_bpe":
        return is_number(add_tokens)
    if tokenizer.vocab_size > tokenizer.num_model_tokens:
        # A token that was added would get another id.
        return False
    if tokenizer.kind == "sentencepiece":
        return tokenizer.is_unigram and not tokenizer.special_tokens.last
    return tokenizer.kind == "wordpiece"
