"""Traces the characters of a normalized text back to the original."""

import unicodedata
from collections.abc import Sequence

import numpy as np


def decompose(text: str) -> tuple[str, list[int]]:
    """Returns the NFD of a text, and the index in the text of each of its characters.

    Characters are decomposed one by one. Then consecutive marks are sorted by their combining
    classes (Unicode 15.0, section 3.11).
    """
    if text.isascii():
        return text, list(range(len(text)))
    characters = [
        (part, index)
        for index, character in enumerate(text)
        for part in unicodedata.normalize("NFD", character)
    ]
    first = 0
    for stop in range(len(characters) + 1):
        if stop == len(characters) or not unicodedata.combining(characters[stop][0]):
            characters[first:stop] = sorted(
                characters[first:stop], key=lambda part: unicodedata.combining(part[0])
            )
            first = stop + 1
    return "".join(part for part, _ in characters), [index for _, index in characters]


def monotone(spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns spans, int32 [T, 2], widened until neither starts nor ends decrease.

    Only text with reordered combining marks needs this.
    """
    spans_Tx2 = np.array(spans, np.int32).reshape(-1, 2)
    starts_T = np.minimum.accumulate(spans_Tx2[::-1, 0])[::-1]
    return np.stack([starts_T, np.maximum.accumulate(spans_Tx2[:, 1])], axis=1)
