"""Makes the task that a config names."""

from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.tasks.glue import SPECS, Glue
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.ner import Ner
from bert_jax.tasks.squad import Squad
from bert_jax.tasks.table import Table
from bert_jax.tasks.task import Task
from bert_jax.tokenizers import Tokenizer

_OTHERS = {"table": Table, "squad": Squad, "ner": Ner, "multiple_choice": MultipleChoice}
NAMES = (*SPECS, *_OTHERS)


def make_task(
    name: str, source: str, tokenizer: Tokenizer, options: Mapping[str, Any], **common: Any
) -> Task:
    """Makes a task; its data are found, and read when they are asked for.

    Args:
      name: One of NAMES.
      source: Where the data are; each task says what it takes.
      tokenizer: That of the model.
      options: The task's own.
      common: `max_seq_length` and `bad_rows`.

    Raises:
      UserError: the data are not there, or an option does not fit them.
    """
    if name in SPECS:
        return Glue(name, source, tokenizer, **common)
    if name in _OTHERS:
        return _OTHERS[name](source, tokenizer, **options, **common)
    raise UserError(f"config.task is {name!r}; it must be one of {', '.join(NAMES)}")
