"""The tasks of fine-tuning, from their data to their metrics."""

from ml_collections import ConfigDict

from bert_jax.tasks.embedding import EmbeddingTask
from bert_jax.tasks.glue import SPECS, GlueTask
from bert_jax.tasks.multiple_choice import MultipleChoiceTask
from bert_jax.tasks.ner import NerTask
from bert_jax.tasks.squad import SquadTask
from bert_jax.tasks.table import TableTask
from bert_jax.tasks.task import Task
from bert_jax.tokenizers import Tokenizer

TASKS: dict[str, type[Task]] = {
    **dict.fromkeys(SPECS, GlueTask),
    "table": TableTask,
    "squad": SquadTask,
    "ner": NerTask,
    "multiple_choice": MultipleChoiceTask,
    "embedding": EmbeddingTask,
}


def make_task(
    config: ConfigDict, source: str, tokenizer: Tokenizer, labels: tuple[str, ...] = ()
) -> Task:
    return TASKS[config.task](config, source, tokenizer, labels)
