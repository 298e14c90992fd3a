"""Divides sentences that are too long for a row."""

import re
import unicodedata

# After punctuation inside a sentence: with a space in most scripts, without one in Chinese.
_AFTER_PUNCTUATION = re.compile(
    r"[,;:.!?…—–،؛؟।۔՝։·][\"'”’»)\]]*\s+|[，、；：。！？…][”’」』）】〉》]*\s*"
)
_AFTER_SPACE = re.compile(r"\s+")


def divide(text: str, max_characters: float) -> list[str]:
    """Halves a text, and each half again, until no part is longer than `max_characters`.

    A cut is in the middle third of a part: after punctuation if there is any, else after a space,
    else between any two characters. It never separates a character from its combining marks.
    """
    if len(text) <= max(1, max_characters):
        return [text]
    cut = _best_cut(text)
    return [*divide(text[:cut], max_characters), *divide(text[cut:], max_characters)]


def _best_cut(text: str) -> int:
    middle, third = len(text) // 2, len(text) // 3
    for place in (_AFTER_PUNCTUATION, _AFTER_SPACE):
        cuts = (match.end() for match in place.finditer(text, third, len(text) - third))
        nearest = min(cuts, key=lambda cut: abs(cut - middle), default=0)
        if 0 < nearest < len(text):
            return nearest
    cut = max(1, middle)
    while cut < len(text) - 1 and unicodedata.category(text[cut])[0] == "M":
        cut += 1
    return cut
