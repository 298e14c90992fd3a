"""Checks the arguments of the inference methods."""

import operator
import os
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.inference.encode_text import check_text

# The methods of `FineTuned`.
_OF_TASKS = ("classify", "answer", "tag", "choose")


class NoTaskError(UserError, AttributeError):
    """A method of a task's head was called on a model without one."""


def no_attribute(bert: Any, name: str) -> AttributeError:
    """Returns the error for a name that a `Bert` does not have."""
    if name not in _OF_TASKS:
        return AttributeError(f"{type(bert).__name__} has no attribute {name!r}")
    return NoTaskError(
        f"{bert.source} has no head of a task: it must be a work directory of python -m "
        "bert_jax.finetune, or a Hugging Face directory of a BertForSequenceClassification, "
        "...TokenClassification, ...QuestionAnswering or ...MultipleChoice"
    )


def whole_number(name: str, value: Any) -> int:
    """Returns the value of an argument that is an integer of any type.

    Raises:
      UserError: The value is not an integer.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise UserError(f"{name} is {value!r}; it must be a whole number") from None


def listed(what: str, texts: Any) -> list[Any]:
    """Returns a list of texts.

    Args:
      what: The method that takes them, for the message.
      texts: Any iterable that has an order and is not one text.

    Raises:
      UserError: The value is something else.
    """
    if isinstance(texts, str | bytes | Set | Mapping) or not isinstance(texts, Iterable):
        raise UserError(
            f"{what} takes a list of texts, and not a {type(texts).__name__}; put one text in "
            "brackets"
        )
    return list(texts)


def checked(text: str, text_b: str | None = None) -> tuple[str, ...]:
    """Returns one sentence or two.

    Raises:
      UserError: One of them is not a text.
    """
    sides = (text,) if text_b is None else (text, text_b)
    for side in sides:
        check_text(side, "the text")
    return sides


def open_output(output: str | os.PathLike, suffixes: Iterable[str]) -> Path | epath.Path:
    """Returns the file that --output names, which need not exist.

    Args:
      output: The value of the flag.
      suffixes: The file name must end with one of these.

    Raises:
      UserError: The name has another end, it is a directory, or its directory does not exist.
    """
    if Path(output).suffix not in suffixes:
        names = " or ".join(f"FILE{suffix}" for suffix in suffixes)
        raise UserError(f"--output is {output}; it must be {names}")
    path = files.open_path(output, "--output")
    if not files.is_remote(path):
        if path.is_dir():
            raise UserError(f"--output is {path}, which is a directory")
        if not path.parent.is_dir():
            raise UserError(f"--output is {path}, but there is no directory {path.parent}")
    return path
