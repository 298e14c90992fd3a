"""Converts texts to token sequences, and refuses values that are not texts."""

from collections.abc import Sequence

from bert_jax.data.text_files import is_unicode
from bert_jax.errors import UserError
from bert_jax.tokenizers import Tokenizer, TokenRow

# A sentence, or a pair of them.
Text = str | tuple[str, str]


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    max_length: int | None,
    *,
    masks: bool = False,
    places: Sequence[str] | None = None,
) -> list[TokenRow]:
    """Tokenizes texts.

    Args:
      tokenizer: The tokenizer of the model.
      texts: Sentences or pairs.
      max_length: The most tokens of a row; see `SequenceTemplate.join`.
      masks: Whether "[MASK]" in a text is the mask token. Otherwise it is plain text.
      places: The place of each text, for messages.

    Raises:
      UserError: A text is neither a sentence nor a pair, or a sentence is empty or not Unicode.
    """
    if places is None:
        count = len(texts)
        numbered = [f"text {i + 1} of {count}" for i in range(count)]
        places = ["the text"] if count == 1 else numbered
    pairs = [text if isinstance(text, tuple) else (text,) for text in texts]
    for sides, place in zip(pairs, places, strict=True):
        if len(sides) > 2:
            raise UserError(f"{place} is a tuple of {len(sides)}; a pair has two")
        for side in sides:
            check_text(side, place)
    sentences = [side for sides in pairs for side in sides]
    if masks:
        ids = iter([tokenizer.encode_masked(sentence) for sentence in sentences])
    else:
        ids = iter(tokenizer.encode_batch(sentences))
    rows = []
    for sides, place in zip(pairs, places, strict=True):
        parts = [next(ids) for _ in sides]
        for part, side in zip(parts, sides, strict=True):
            if not len(part):
                raise UserError(f"{place} has no token in {side[:40]!r}; give it some text")
        rows.append(tokenizer.join(*parts, max_length=max_length))
    return rows


def check_text(text: str, place: str) -> None:
    """Raises UserError if a value, whose place the message names, is not a Unicode text."""
    if not isinstance(text, str):
        raise UserError(f"{place} is a {type(text).__name__}; it must be a string or a pair (a, b)")
    if not is_unicode(text):
        raise UserError(f"{place} is not valid Unicode: it has a lone surrogate")
