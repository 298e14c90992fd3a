"""Reads the lists of tokens and merges that vocabulary files hold."""

from collections.abc import Collection, Mapping

from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tokenizers.special_tokens import SpecialTokens

# A vocabulary as the library `tokenizers` writes it.
LIBRARY_FILE = "tokenizer.json"
# The placeholders of BERT's vocabularies: "[unused0]", ...
_UNUSED = "[unused"
_MOST_PLACEHOLDERS = 2**16


def is_placeholder(token: str) -> bool:
    """Returns whether a token stands for an id that text never produces: "[unused0]"."""
    return token.startswith(_UNUSED)


def vocabulary_lines(path: epath.PathLike) -> list[str]:
    """Reads the lines of a vocabulary.

    Only "\\n" ends a line, because other line separators occur as tokens. A byte order mark is no
    part of the first.
    """
    return files.read_whole(path).decode("utf-8-sig").removesuffix("\n").split("\n")


def read_merges(path: epath.PathLike) -> list[tuple[str, str]]:
    """Reads the pairs of pieces that a BPE joins, a line each, maybe with a count after them."""
    lines = vocabulary_lines(path)
    if lines[0].startswith("#version"):
        del lines[0]
    parts = [line.split() for line in lines]
    return [(first, second) for first, second, *_ in filter(None, parts)]


def tokens_by_id(ids: Mapping[str, int], size: int = 0) -> list[str]:
    """Sorts the tokens of a vocabulary by their ids.

    An id without a token gets a placeholder. A model has a row for it, but no text produces it. The
    result has at least `size` tokens. Raises ValueError for an id far above their number, for which
    the result would fill the memory.
    """
    highest = max(ids.values(), default=0)
    if highest > 2 * len(ids) + _MOST_PLACEHOLDERS:
        raise ValueError(f"a vocabulary of {len(ids):,} tokens has the id {highest:,}")
    by_id = {i: token for token, i in ids.items()}
    size = max([size, *(i + 1 for i in by_id)])
    return [by_id.get(i, f"{_UNUSED}_{i}]") for i in range(size)]


def require_special_tokens(
    tokens: Collection[str], special_tokens: SpecialTokens, path: epath.PathLike
) -> None:
    if missing := [token for token in special_tokens.spellings if token not in tokens]:
        raise UserError(f"the vocabulary {path} has no {' '.join(missing)}, which BERT needs")
