"""What is asked of a BERT, checked: any mistake is one sentence."""

import operator
import os
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.inference.encode_text import check_text

# What `FineTuned` answers.
_OF_TASKS = ("classify", "answer", "tag", "choose")


class NoTaskError(UserError, AttributeError):
    """What a task's head answers was asked of a model that has none."""


def no_attribute(bert: Any, name: str) -> AttributeError:
    """The error of a name that a `Bert` does not have."""
    if name not in _OF_TASKS:
        return AttributeError(f"{type(bert).__name__} has no attribute {name!r}")
    return NoTaskError(
        f"{bert.source} has no task's head: it must be a work directory of python -m "
        "bert_jax.finetune, or a Hugging Face directory of a BertForSequenceClassification, "
        "...TokenClassification, ...QuestionAnswering or ...MultipleChoice"
    )


def whole_number(name: str, value: Any) -> int:
    """An argument's value, of any type of whole numbers.

    Raises:
      UserError: it is something else.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise UserError(f"{name} is {value!r}; it must be a whole number") from None


def listed(what: str, texts: Any) -> list[Any]:
    """Several texts, which have an order.

    Args:
      what: What takes them, for the message.
      texts: Any iterable, but for those that are one text, or have no order.

    Raises:
      UserError: it is something else.
    """
    if isinstance(texts, str | bytes | Set | Mapping) or not isinstance(texts, Iterable):
        raise UserError(
            f"{what} takes a list of texts, and not a {type(texts).__name__}; put one text in "
            "brackets"
        )
    return list(texts)


def checked(text: str, text_b: str | None = None) -> tuple[str, ...]:
    """A sentence or two.

    Raises:
      UserError: one is no text, such as a pair.
    """
    sides = (text,) if text_b is None else (text, text_b)
    for side in sides:
        check_text(side, lambda: "the text")
    return sides


def open_output(output: str | os.PathLike, suffixes: Iterable[str]) -> Path | epath.Path:
    """The file that --output names, in a directory that is there.

    Args:
      output: As the user gave it.
      suffixes: Its name must end with one of these.

    Raises:
      UserError: it does not, or no file can be there.
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
