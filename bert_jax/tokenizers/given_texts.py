"""The texts that callers give: one or a list, of sentences or pairs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.base.errors import UserError

# A sentence, or a pair of them.
Text = str | tuple[str, str]
# One sentence or a list of texts, and the second sentences of pairs.
Texts = str | Sequence[Text]
SecondTexts = str | Sequence[str] | None


def as_texts(text: Texts, text_b: SecondTexts = None) -> list[Text]:
    """Lists the sentences or pairs of one text or of a list; `text_b` has the second sentences."""
    if isinstance(text, bytes | Mapping) or not isinstance(text, Iterable):
        raise UserError(f"the text is {text!r:.40}; it must be a string or a list of strings")
    is_one = isinstance(text, str)
    texts = [text] if is_one else list(text)
    if text_b is not None:
        others = [text_b] if is_one else list(text_b)
        if len(others) != len(texts) or isinstance(text_b, str) > is_one:
            raise UserError(f"there are {len(texts)} first texts, but {len(others)} second ones")
        texts = list(zip(texts, others, strict=True))
    for i, each in enumerate(texts):
        sides = each if isinstance(each, tuple) and len(each) == 2 else (each,)
        if not all(isinstance(side, str) for side in sides):
            raise UserError(f"text {i} is {each!r:.40}; it must be a string or a tuple of two")
    return texts


def with_lists(text: Any, lists: Any, what: str) -> list[tuple[str, list[str]]]:
    """Lists one text with its list of texts, or each of several with its own.

    Args:
      what: What the texts of a list are called in messages.
    """
    texts = as_texts(text)
    all_lists = [lists] if isinstance(text, str) else list(lists)
    if len(all_lists) != len(texts):
        raise UserError(f"there are {len(texts)} texts, but {len(all_lists)} lists of {what}")
    found = list(zip(texts, map(as_texts, all_lists), strict=True))
    for each in (each for first, others in found for each in (first, *others)):
        if isinstance(each, tuple):
            raise UserError(f"{each!r:.40} is a pair; texts and {what} must be single strings")
    return found


def one_or_all(text: Any, results: list[Any]) -> Any:
    """Unpacks the list of results if there was a single text, not a list."""
    return results[0] if isinstance(text, str) else results
