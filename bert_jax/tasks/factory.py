"""Makes the task that a config names."""

from typing import Any

from bert_jax.tasks.glue import SPECS, GlueTask
from bert_jax.tasks.multiple_choice import MultipleChoiceTask
from bert_jax.tasks.ner import NerTask
from bert_jax.tasks.squad import SquadTask
from bert_jax.tasks.table import TableTask
from bert_jax.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    **dict.fromkeys(SPECS, GlueTask),
    "table": TableTask,
    "squad": SquadTask,
    "ner": NerTask,
    "multiple_choice": MultipleChoiceTask,
}


def make_task(name: str, *args: Any, **kwargs: Any) -> Task:
    """Makes the task with this name, a key of TASKS; see `Task` for the arguments."""
    return TASKS[name](name, *args, **kwargs)
