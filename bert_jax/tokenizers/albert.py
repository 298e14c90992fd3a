"""ALBERT's rules around a SentencePiece model.

The rules come from google-research/albert: `preprocess_text` and `encode_pieces` in
tokenization.py, `_is_start_piece_sp` in create_pretraining_data.py. The doubled quotation marks
`` and '' become ". The ids equal those of `transformers`' AlbertTokenizer, except that a capital
sigma at the end of a word becomes ς.
"""

import unicodedata
from collections.abc import Callable

WORD_START = "▁"
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_WORD_INSIDE = _PUNCTUATION | frozenset("abcdefghijklmnopqrstuvwxyz")


def normalize(text: str, lowercase: bool) -> str:
    """Returns the text that the model is applied to.

    White space becomes single spaces, and compatibility characters are decomposed (NFKD without
    combining marks).
    """
    return _decomposed(" ".join(text.split()).replace("``", '"').replace("''", '"'), lowercase)


def _decomposed(text: str, lowercase: bool) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        text = "".join(c for c in text if not unicodedata.combining(c))
    return text.lower() if lowercase else text


def normalize_aligned(text: str, lowercase: bool) -> tuple[str, list[int]]:
    """Returns `normalize(text, lowercase)` and the index in `text` of each of its characters."""
    characters: list[tuple[str, int]] = []
    for index, character in enumerate(text):
        last = characters[-1][0] if characters else " "
        if character.isspace():
            characters += [(" ", index)] * (last != " ")
        elif character in "`'" and last == character:
            characters[-1] = ('"', characters[-1][1])
        else:
            characters.append((character, index))
    if characters and characters[-1][0] == " ":
        characters.pop()
    # Context affects only the form of sigma, never the number of characters.
    sources = [index for c, index in characters for _ in _decomposed(c, lowercase)]
    return normalize(text, lowercase), sources


def is_word_start(piece: str) -> bool:
    """Returns whether a piece begins a word, for n-gram masking.

    Punctuation begins a word, and so does every piece with a character that is neither an English
    letter nor punctuation.
    """
    return (
        piece.startswith((WORD_START, "<"))
        or piece in _PUNCTUATION
        or not all(character.lower() in _WORD_INSIDE for character in piece)
    )


def number_pieces(piece: str, encode: Callable[[str], list[str]]) -> list[str] | None:
    """Returns the pieces that replace a piece such as "▁2," or "9,"; None for other pieces.

    Args:
      piece: A piece of the model.
      encode: Returns the pieces of a text.
    """
    if not (len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()):
        return None
    pieces = encode(piece[:-1].replace(WORD_START, ""))
    if not piece.startswith(WORD_START):
        pieces[0] = pieces[0].removeprefix(WORD_START)
    return [part for part in (*pieces, ",") if part]
