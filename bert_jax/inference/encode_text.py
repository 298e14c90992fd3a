"""Converts texts to token sequences, and refuses values that are not texts."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.interop.sentence_transformers import Embedding
from bert_jax.text.readers import is_unicode
from bert_jax.tokenizers import Tokenizer, TokenRow

# A sentence, or a pair of them.
Text = str | tuple[str, str]
# One sentence or a list of texts, and the second sentences of pairs.
Texts = str | Sequence[Text]
SecondTexts = str | Sequence[str] | None


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    max_length: int | None,
    *,
    masks: bool = False,
    names: Sequence[str] | None = None,
    pairs_allowed: bool = True,
    blank: list[str] | None = None,
) -> list[TokenRow]:
    """Tokenizes texts.

    Args:
      texts: Sentences or pairs.
      max_length: The largest number of tokens in a row; see `SequenceTemplate.join`.
      masks: Whether "[MASK]" in a text is the mask token. Otherwise it is plain text.
      names: The name of each text in messages, such as FILE:LINE.
      pairs_allowed: Whether a text may be a pair.
      blank: A list that gets the names of texts with a sentence without tokens. Their rows have
        only special tokens there. None refuses such texts.

    Raises:
      UserError: A text is neither a sentence nor an allowed pair, or a sentence is not Unicode, or
        has no tokens and `blank` is None.
    """
    if names is None:
        count = len(texts)
        names = ["the text"] if count == 1 else [f"text {i + 1} of {count}" for i in range(count)]
    pairs = [text if isinstance(text, tuple) else (text,) for text in texts]
    for sides, name in zip(pairs, names, strict=True):
        if len(sides) > 2:
            raise UserError(f"{name} is a tuple of {len(sides)}; a pair has two")
        if len(sides) == 2 and not pairs_allowed:
            raise UserError(f"{name} is a pair; a stride splits only single texts")
        for side in sides:
            check_text(side, name)
    sentences = [side for sides in pairs for side in sides]
    ids = iter(
        map(tokenizer.encode_masked, sentences) if masks else tokenizer.encode_batch(sentences)
    )
    rows = []
    for sides, name in zip(pairs, names, strict=True):
        parts = [next(ids) for _ in sides]
        empty = [side for part, side in zip(parts, sides, strict=True) if not len(part)]
        if empty and blank is None:
            raise UserError(f"{name} has no character that the tokenizer keeps: {empty[0][:40]!r}")
        if empty:
            blank.append(name)
        rows.append(tokenizer.join(*parts, max_length=max_length))
    return rows


def with_prompt(texts: Sequence[Text], embedding: Embedding) -> list[Text]:
    """Puts the prompt before texts and lower-cases them, as `embedding` says."""

    def changed(text: Any, prompt: str = "") -> Any:
        if isinstance(text, tuple):
            return (*(changed(side, embedding.prompt * (not i)) for i, side in enumerate(text)),)
        if not isinstance(text, str):
            return text
        return (prompt + text).lower() if embedding.lowercase else prompt + text

    return [changed(text, embedding.prompt) for text in texts]


def split_row(row: TokenRow, tokenizer: Tokenizer, embedding: Embedding) -> list[TokenRow]:
    """Splits the row of a text into windows; see `Embedding.stride`."""
    template = tokenizer.template
    ids = row.input_ids_L[len(template.before) : len(row.input_ids_L) - len(template.after)]
    size = embedding.max_length - template.num_special(is_pair=False)
    starts = range(0, max(len(ids) - size, 0) + embedding.stride, embedding.stride)
    return [tokenizer.join(ids[start : start + size]) for start in starts]


def warn_about_unknown(tokenizer: Tokenizer, rows: Sequence[TokenRow], source: str) -> None:
    """Warns if half of the tokens are unknown."""
    fraction = tokenizer.unknown_fraction(np.concatenate([row.input_ids_L for row in rows] or [[]]))
    if fraction >= 0.5:
        warnings.warn(
            f"{fraction:.0%} of the tokens are unknown to the vocabulary of {source}", stacklevel=4
        )


def warn_about_blank(blank: Sequence[str], number: int) -> None:
    """Warns if some of `number` texts are blank; `blank` names these."""
    if blank:
        count = f"{len(blank):,} of {number:,} texts are blank, with the features of [CLS] [SEP]"
        which = "the text is blank" if number == 1 else f"{count}; the first is {blank[0]}"
        warnings.warn(which, stacklevel=3)


def as_texts(text: Texts, text_b: SecondTexts = None) -> list[Text]:
    """Lists the sentences or pairs of one text or of a list; `text_b` has the second sentences.

    Raises:
      UserError: Only one of the two is a list, or the lists have different lengths.
    """
    if isinstance(text, str) or not isinstance(text, Iterable):
        return [text if text_b is None else (text, text_b)]
    texts = list(text)
    if text_b is None:
        return texts
    seconds = [] if isinstance(text_b, str) else list(text_b)
    if len(seconds) != len(texts):
        raise UserError(f"the {len(texts)} texts of a list need a list of as many second texts")
    return list(zip(texts, seconds, strict=True))


def one_or_all(text: Any, results: list[Any]) -> Any:
    """Unpacks the list of results if there was a single text, not a list."""
    return results[0] if isinstance(text, str) else results


def check_text(text: str, name: str) -> None:
    """Raises UserError if a text, which the message calls `name`, is not a Unicode string."""
    if not isinstance(text, str):
        raise UserError(f"{name} is a {type(text).__name__}; it must be a string or a pair (a, b)")
    if not is_unicode(text):
        raise UserError(f"{name} is not valid Unicode: it has a lone surrogate")
