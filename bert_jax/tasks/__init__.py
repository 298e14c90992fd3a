"""The tasks of fine-tuning, from their data to their metrics."""

from ml_collections import ConfigDict

from bert_jax.base.parts import load_part, trust
from bert_jax.config.task_sections import TASKS
from bert_jax.tasks.task import Task
from bert_jax.tokenizers import Tokenizer


def make_task(
    config: ConfigDict, source: str, tokenizer: Tokenizer, labels: tuple[str, ...] = ()
) -> Task:
    """Makes the task that `config.task` names; see `Task`."""
    kind = load_part(config.task, TASKS, "config.task")
    # A user who names a task trusts its head too.
    trust(kind.head)
    return kind(config, source, tokenizer, labels)
