"""The configuration: every key with its default, its meaning and its range.

Each module defines a section or a group of keys; `common` defines those that pre-training and
fine-tuning share. A file in configs/ starts from `default_config()` or `finetune_config(task)`,
changes some values and returns the config. Flags override single values:
`--config.model.num_hidden_layers=6`. A command validates the finished config once, before any
work; all other code trusts the values.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.config import finetuning, pretraining
from bert_jax.config.checks import check_batch, check_vocabulary
from bert_jax.config.finetuning import finetune_config
from bert_jax.config.pretraining import (
    default_config,
    from_dict,
    teacher_layers,
    validate,
    validate_data,
)
from bert_jax.config.schema import Field, differences, flatten, to_dict
from bert_jax.config.stage_keys import (
    batch_ramp,
    derived_predictions,
    max_predictions,
    stage,
    stages_of_tokens,
)


def from_stored(values: Mapping[str, Any]) -> ConfigDict:
    """Makes the config of a run of pre-training or fine-tuning from plain dicts and lists."""
    return (finetuning if "task" in values else pretraining).from_dict(values)


def read_stored(path: epath.Path | Path) -> ConfigDict:
    """Reads the config.json of a work directory; keys added since then have their defaults."""
    values = files.read_json(path)
    try:
        return from_stored(values)
    except Exception as error:
        raise UserError(f"{path} is not a config of this version of bert_jax: {error}") from error


def fields(config: Mapping[str, Any] | ConfigDict) -> dict[str, Field]:
    """Returns the fields of a config by the paths of their keys, such as "train.num_steps"."""
    if "task" not in config:
        return dict(flatten(pretraining.PRETRAINING))
    sections = finetuning.FINETUNING, finetuning.TASK_SECTIONS, finetuning.FILLED_IN
    return {path: field for section in sections for path, field in flatten(section)}


def check_argument(arg: str, choices: Collection[str] = ()) -> None:
    """Refuses an argument (FILE.py:ARG) that a config file does not take."""
    if arg not in (choices or ("",)):
        known = f"it must end in one of :{', :'.join(choices)}" if choices else "leave that out"
        raise UserError(f"--config ends in :{arg}; {known}")
