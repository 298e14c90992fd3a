"""Divides a text into the words that a model tags."""

import unicodedata


def word_spans(text: str) -> list[tuple[int, int]]:
    """Returns the characters of each run of letters and digits, and of each other character.

    Accents and joiners belong to the character before them.
    """
    spans: list[tuple[int, int]] = []
    before = ""
    for place, character in enumerate(text):
        category = unicodedata.category(character)
        is_letter = character.isalnum() or character == "_"
        is_joiner = category[0] == "M" or category == "Cf"
        if character.isspace() or category == "Cc":
            before = ""
        elif is_joiner and not before:
            # A mark that follows a blank is not a word.
            continue
        elif is_joiner or is_letter and before == "letter":
            spans[-1] = (spans[-1][0], place + 1)
        else:
            spans.append((place, place + 1))
            before = "letter" if is_letter else "sign"
    return spans
