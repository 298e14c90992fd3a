"""The checks of a run of fine-tuning before any work is done."""

import numpy as np
from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.finetuning.predictions import predicted_splits
from bert_jax.tasks.task import Task
from bert_jax.tasks.token_rows import TokenRows


def read_rows(config: ConfigDict, task: Task) -> list[str]:
    """Reads all rows of a run now, because a bad row would end it hours later.

    Returns:
      A sentence for each split with truncated rows.
    """
    splits = dict.fromkeys(("train", *task.scored_splits, *predicted_splits(config, task)))
    truncated = {split: task.rows(split).truncated() for split in splits}
    return [f"{split}: {text}" for split, text in truncated.items() if text]


def check_segments(config: ConfigDict, rows: TokenRows) -> None:
    """Refuses sentence pairs if the weights have only one token type.

    A model without any token type, such as DistilBERT, accepts pairs: only [SEP] separates them.
    """
    # Either all examples of a task are pairs or none is.
    if config.model.type_vocab_size == 1 and rows.take(np.arange(1))["token_type_ids"].any():
        raise UserError(
            f"config.init_from is {config.init_from}, which has only one token type "
            f"(type_vocab_size is 1), but the examples of {config.task} are pairs"
        )
