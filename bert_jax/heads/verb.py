"""A verb of `predict`: a function from examples to results.

An example is a dict of fields: the words of a command line, or a line of a file. A result is a JSON
object with the same keys for both.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from etils import epath

from bert_jax.base.errors import UserError
from bert_jax.text.tables import as_text
from bert_jax.tokenizers.given_texts import Text

Item = dict[str, Any]

# The words of a command line as parameters, named by the fields of an example.
TEXT = inspect.signature(lambda text: None)
PAIR = inspect.signature(lambda text, text_b: None)
TEXT_OR_PAIR = inspect.signature(lambda text, text_b=None: None)


class FileFormat(NamedTuple):
    """A format of files that only one verb reads.

    Attributes:
      name: Its name in messages.
      matches: Takes a path; returns whether the file is in this format.
      read: Takes a path; yields FILE:LINE and the fields of each example.
    """

    name: str
    matches: Callable[[epath.Path], bool]
    read: Callable[[epath.Path], Iterator[tuple[str, Item]]]


class Verb(NamedTuple):
    """A command of `predict`. The model has a method of the same name, with underscores.

    Attributes:
      name: The command.
      predict: (model, examples, **options) -> results, one for each example.
      words: The words of a command line as parameters, named by the fields of an example.
      options: The flags that the command takes; they are the options of `predict`.
      format: The format of files that only this verb reads, if any.
      example: Words of a command line, each in quotes.
    """

    name: str
    predict: Callable[..., list[Item]]
    words: inspect.Signature
    options: tuple[str, ...] = ()
    format: FileFormat | None = None
    example: tuple[str, ...] = ()


def value_of(item: Item, name: str, kind: Any = str) -> Any:
    """Returns a field of an example, a text by default; one that is missing is an error."""
    if name not in item:
        raise UserError(f"it has no field `{name}`; its fields: {', '.join(item) or 'none'}")
    # What is missing (null, NaN) is an empty text.
    value = "" if kind is str and as_text(item[name]) == "" else item[name]
    if not isinstance(value, kind):
        what = "string" if kind is str else "list"
        raise UserError(f"`{name}` is {value!r:.40}; it must be a {what}")
    return value


def values_of(items: list[Item], name: str) -> list[str]:
    return [value_of(item, name) for item in items]


def texts_of(bert: Any, items: list[Item], text_columns: Sequence[str] = ()) -> list[Text]:
    """Finds the text or pair of each example.

    They are in `text_columns`. If this is empty, they are in the columns that the model was trained
    on, or in `text` and `text_b`.
    """
    texts = []
    for item in items:
        columns = tuple(text_columns) or getattr(bert, "text_columns", ())
        # Files and command lines may always use `text`, whatever the columns in training.
        own = set(columns) - {"text"}
        is_other = "text" in item and not (own and own <= item.keys())
        if not columns or (is_other and not text_columns):
            columns = ("text", "text_b")[: 1 + ("text_b" in item)]
        first, second = (*(value_of(item, column) for column in columns), "")[:2]
        # Tables without a second sentence often have a null or an empty text for it.
        texts.append((first, second) if second.strip() else first)
    return texts


def objects(predictions: list[Any]) -> list[Item]:
    """Converts named tuples to JSON objects."""
    return [prediction._asdict() for prediction in predictions]
