"""Text as the encoder reads it: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tokenizers import Tokenizer

# A sentence, or a pair of them.
Text = str | tuple[str, str]


class Row(NamedTuple):
    """A text's tokens.

    Attributes:
      input_ids_L: int32, not padded.
      num_first: How many of them are of segment A: [CLS], A and [SEP].
      num_cut: Tokens of the text that were beyond the length.
    """

    input_ids_L: np.ndarray
    num_first: int
    num_cut: int

    @property
    def token_type_ids_L(self) -> np.ndarray:
        """int32, 0 in segment A, 1 in segment B."""
        return (np.arange(len(self.input_ids_L)) >= self.num_first).astype(np.int32)


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    max_length: int,
    *,
    masks: bool = False,
    places: Sequence[str] | None = None,
) -> list[Row]:
    """Tokenizes texts.

    Args:
      tokenizer: The model's.
      texts: Sentences or pairs.
      max_length: Tokens a row has at the most. Of a longer text the end is cut off, of a
        pair that of the longer side, a token at a time, as the original does.
      masks: Whether "[MASK]" in a text is the mask token; else it is plain text.
      places: Where each text is from, for messages.

    Raises:
      UserError: a text is neither a sentence nor a pair; a sentence is empty, or not Unicode.
    """
    sides = [text if isinstance(text, tuple) else (text,) for text in texts]
    for number, side in enumerate(sides):
        if isinstance(texts[number], tuple) and len(side) != 2:
            where = _where(number, sides, places)
            raise UserError(f"{where} is a tuple of {len(side)}; a pair has two")
        for sentence in side:
            check_text(sentence, lambda number=number: _where(number, sides, places))
    ids = iter(_ids(tokenizer, [sentence for side in sides for sentence in side], masks))
    rows = []
    for number, side in enumerate(sides):
        parts = [next(ids) for _ in side]
        for part, sentence in zip(parts, side, strict=True):
            if not len(part):
                which = "has a sentence" if len(side) > 1 else "is"
                raise UserError(
                    f"{_where(number, sides, places)} {which} without a token: {sentence[:40]!r}; "
                    "give it some text"
                )
        rows.append(_row(tokenizer, parts, max_length))
    return rows


def check_text(text: str, where: Callable[[], str]) -> None:
    """Refuses what is no text.

    Args:
      text: What was given for one.
      where: Says what it is, for messages.

    Raises:
      UserError: it is of another type, or not Unicode.
    """
    if not isinstance(text, str):
        hint = "; a pair of texts is a tuple" if isinstance(text, list) else ""
        raise UserError(f"{where()} is no text but a {type(text).__name__}{hint}")
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where()} is not valid Unicode: it has a lone surrogate") from None


def _where(number: int, sides: Sequence, places: Sequence[str] | None) -> str:
    if places is not None:
        return places[number]
    return f"text {number + 1} of {len(sides)}" if len(sides) > 1 else "the text"


def _ids(tokenizer: Tokenizer, sentences: Sequence[str], masks: bool) -> list[np.ndarray]:
    if not masks:
        return tokenizer.encode_batch(sentences)
    return [tokenizer.encode_masked(sentence) for sentence in sentences]


def _row(tokenizer: Tokenizer, parts: list[np.ndarray], max_length: int) -> Row:
    room = max_length - 1 - len(parts)
    first, rest = len(parts[0]), sum(map(len, parts[1:]))
    # A may have half, rounded up, and what B leaves.
    half = -(-room // len(parts))
    first = min(first, max(half, room - rest))
    cuts = (first, room - first)
    sep = np.array([tokenizer.sep_id], np.int32)
    segments = [part[:cut] for part, cut in zip(parts, cuts, strict=False)]
    input_ids_L = np.concatenate(
        [np.array([tokenizer.cls_id], np.int32), *(p for s in segments for p in (s, sep))]
    )
    return Row(input_ids_L, first + 2, sum(map(len, parts)) - sum(map(len, segments)))
