"""Prints how the text of a corpus was read and changed while it was prepared."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.base.progress import say
from bert_jax.text.guess_format import FormatGuess
from bert_jax.text.row_documents import ROW_FORMATS

# A larger fraction of lost characters gets a warning.
_MAX_LOST_FRACTION = 0.01
# Rows with fewer tokens are probably sentences.
_MIN_ROW_TOKENS = 40


def show(
    guesses: Mapping[str, FormatGuess],
    counts: Mapping[str, Any],
    data: ConfigDict,
    unk: str,
    num_documents: int,
) -> None:
    """Prints how the text was read.

    Args:
      counts: The sums of `TokenizedDocument.counts`.
    """
    show_formats(guesses)
    tokens = max(counts["tokens"], 1)
    formats = {data.format, *(guess.format for guess in guesses.values())}
    if (
        formats & ROW_FORMATS
        and data.table_rows == "documents"
        # A prompt with its answer may be short.
        and "," not in data.text_field
        and tokens < _MIN_ROW_TOKENS * num_documents
    ):
        say(
            f"warning: a document has {tokens / num_documents:.1f} tokens on average, which is too "
            "few for pairs of segments: if each row is a sentence, set data.table_rows=sentences"
        )
    say(f"{counts['unknown_tokens'] / tokens:.2%} of the tokens are {unk}")
    lost = counts["lost_characters"] / max(counts["characters"], 1)
    if lost > _MAX_LOST_FRACTION:
        say(
            f"warning: data.lowercase=True strips {lost:.1%} of the characters, vowel signs or "
            "other marks that are not accents in this script: set data.lowercase=False"
        )


def show_formats(guesses: Mapping[str, FormatGuess]) -> None:
    """Prints the guessed formats, by file."""
    groups: dict[FormatGuess, list[str]] = {}
    for path, guess in guesses.items():
        groups.setdefault(guess, []).append(path)
    for guess, paths in groups.items():
        others = f" and {len(paths) - 1:,} more" if paths[1:] else ""
        format = f"data.format={guess.format}"
        say(f"data.format=auto read {paths[0]}{others} as {format}: {guess.reason}")
        if guess.is_doubtful:
            other = "documents" if guess.format == "sentences" else "sentences"
            say(f"warning: this is a guess; if it is wrong, set data.format={other}")
