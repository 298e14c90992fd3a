"""Makes the task that a config names."""

from collections.abc import Mapping
from typing import Any

from bert_jax.tasks.glue import SPECS, GlueTask
from bert_jax.tasks.multiple_choice import MultipleChoiceTask
from bert_jax.tasks.ner import NerTask
from bert_jax.tasks.squad import SquadTask
from bert_jax.tasks.table import TableTask
from bert_jax.tasks.task import Task
from bert_jax.tokenizers import Tokenizer

_OTHERS = {
    "table": TableTask,
    "squad": SquadTask,
    "ner": NerTask,
    "multiple_choice": MultipleChoiceTask,
}
NAMES = (*SPECS, *_OTHERS)


def make_task(
    name: str, source: str, tokenizer: Tokenizer, options: Mapping[str, Any], **common: Any
) -> Task:
    """Makes a task. Its files are found now, and most are read when they are first needed.

    Args:
      name: One of NAMES.
      source: The place of the data; see the tasks.
      tokenizer: The tokenizer of the model.
      options: The task's section of the config.
      common: `max_seq_length` and `bad_rows`.

    Raises:
      UserError: The data do not exist, or an option does not fit them.
    """
    if name in SPECS:
        return GlueTask(name, source, tokenizer, **common)
    return _OTHERS[name](source, tokenizer, **options, **common)
