"""Prepares a fine-tuning run: its weights, tokenizer, task and trainer."""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.finetuning.layer_rates import scaled_by_layer
from bert_jax.heads import load_head
from bert_jax.interop.embedding import Embedding
from bert_jax.interop.formats import read_pretrained
from bert_jax.interop.model_keys import MODEL_KEYS
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import complete_weights, unflatten
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.tasks import make_task
from bert_jax.tasks.task import Task
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.tokenizers import Tokenizer
from bert_jax.training import workdir
from bert_jax.training.stages import Stage, curve_of_run
from bert_jax.training.state import TrainState
from bert_jax.training.trainer import Trainer, make_layout, make_model_config

# Fingerprints of rows depend on it.
_ROWS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class TaskSetup:
    """The weights and data that all runs of a task share.

    Attributes:
      model: The model keys of the weights, as in `config.model`.
      family: The family of the weights, as in `config.family`.
      pretrained: The weights; None if the run continues from its own checkpoint.
    """

    model: dict[str, Any]
    family: str
    tokenizer: Tokenizer
    task: Task
    pretrained: Pretrained | None

    @functools.cached_property
    def data_identity(self) -> dict[str, Any]:
        """The identity of the task's data, which must not change in a work directory."""
        splits = [split for split in self.task.splits if not split.startswith("test")]
        return {
            "task": self.task.name,
            "rows": {split: len(self.task.rows(split)) for split in splits},
            "sha256": {split: rows_fingerprint(self.task.rows(split)) for split in splits},
            "tokenizer": self.tokenizer.fingerprint,
        }


def open_task_setup(config: ConfigDict, directory: epath.PathLike | None = None) -> TaskSetup:
    """Reads the weights and opens the data.

    Args:
      directory: The work directory of the run. If it has checkpoints, its config and tokenizer
        are used, and the initial weights need not exist.
    """
    pretrained = None
    if directory is not None and workdir.has_checkpoints(directory):
        saved = workdir.load_config(directory)
        model, family = {key: saved.model[key] for key in MODEL_KEYS}, saved.family
        tokenizer = tokenizers.load(epath.Path(directory) / workdir.TOKENIZER)
    else:
        pretrained = read_pretrained(config.init_from)
        model, family = pretrained.model, pretrained.family
        tokenizer = pretrained.needed_tokenizer()
    positions = model["max_position_embeddings"]
    if config.data.max_seq_length > positions:
        raise UserError(
            f"config.data.max_seq_length is {config.data.max_seq_length}, longer than the "
            f"{positions} positions of {config.init_from}"
        )
    task = make_task(config, config.data.input, tokenizer)
    return TaskSetup(model, family, tokenizer, task, pretrained)


def predicted_splits(config: ConfigDict, task: Task) -> list[str]:
    """Selects the splits of `config.eval.predict`, of which there must be one."""
    prefixes = {"": (), "test": ("test",), "all": ("test", "validation")}[config.eval.predict]
    splits = [split for split in task.splits if split.startswith(prefixes)]
    if prefixes and not splits:
        raise UserError(
            f"config.eval.predict is {config.eval.predict}, but config.data.input, "
            f"{config.data.input}, has no test split; it has: " + ", ".join(task.splits)
        )
    return splits


def read_rows(config: ConfigDict, task: Task) -> list[str]:
    """Reads all rows of a run now, because a bad row would end it hours later.

    Returns:
      A sentence for each split with truncated rows.
    """
    validation_splits = [split for split in task.splits if split.startswith("validation")]
    splits = dict.fromkeys(("train", *validation_splits, *predicted_splits(config, task)))
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


def make_trainer(
    config: ConfigDict,
    stage: Stage,
    class_counts: Mapping[str, int] = MappingProxyType({}),
    devices: Sequence[jax.Device] | None = None,
) -> Trainer:
    """Builds the trainer of a filled-in config, for all devices by default.

    Args:
      class_counts: The training examples of each class; see `Task.class_counts`.
    """
    head, decay = load_head(config.head), config.optimizer.layer_decay
    # Blocks that share their parameters have one rate.
    num_layers = config.model.layer_groups or config.model.num_hidden_layers
    scaling = scaled_by_layer(num_layers, decay) if decay != 1 else None
    layout = make_layout(config, devices)
    model = head.make_model(make_model_config(config, layout), len(config.labels), config)
    loss = head.make_loss(config, class_counts)
    trainer = Trainer.create(config, layout, model, loss, [stage], scaling=scaling)
    config_lib.check_batch(config, num_data_shards(trainer.mesh), jax.process_count())
    return dataclasses.replace(trainer, accumulation_steps=1) if head.divides_batch else trainer


def other_settings(config: ConfigDict, pretrained: Pretrained) -> list[str]:
    """Lists settings of embeddings in which a config differs from its weights, as sentences."""
    theirs, own = pretrained.embedding, config.embedding
    if theirs == Embedding():
        return []
    settings = {
        "pooling": theirs.pooling or own.pooling,
        "query_prompt": theirs.for_queries().prompt,
        "document_prompt": theirs.for_documents().prompt,
        "include_prompt": theirs.include_prompt,
    }
    return [
        f"config.embedding.{key} is {own[key]!r}, but {value!r} in {config.init_from}"
        for key, value in settings.items()
        if value != own[key]
    ]


def make_stage(config: ConfigDict, rows: TokenRows) -> Stage:
    """Makes the only stage of the run. Each choice or text of an example is a sequence."""
    num_steps = int(len(rows) * config.train.num_epochs / config.train.batch_size)
    if not num_steps:
        raise UserError(
            f"config.train.num_epochs is {config.train.num_epochs:g}, which gives less than one "
            f"batch of config.train.batch_size={config.train.batch_size} from {len(rows)} examples"
        )
    first = rows.take(np.arange(1))
    texts = math.prod(first["input_ids"].shape[1:-1])
    if "document_ids" in first:
        texts += first["document_ids"].shape[1]
    return stage_of(config, num_steps, texts)


def stage_of(config: ConfigDict, num_steps: int, texts: int) -> Stage:
    """Makes the stage of examples that have this number of sequences each."""
    return Stage(
        index=0,
        first_step=0,
        end_step=num_steps,
        max_seq_length=config.data.max_seq_length,
        max_predictions_per_seq=0,
        batch_size=config.train.batch_size * texts,
        masked_lm_prob=0.0,
        weight_decay=config.optimizer.weight_decay,
        curve=curve_of_run(config.schedule, num_steps),
    )


def first_state(config: ConfigDict, trainer: Trainer, setup: TaskSetup) -> TrainState:
    """Creates the state of step 0, with the encoder's weights and a head drawn from the seed.

    Weights that are fine-tuned already keep their head if it has the same labels.
    """
    if config.from_scratch:
        return trainer.init_state()
    # The weights are read here if all checkpoints of the run are damaged.
    pretrained = setup.pretrained or read_pretrained(config.init_from)
    prefixes: tuple[str, ...] = ("bert/",)
    if (pretrained.head, pretrained.labels) == (config.head, tuple(config.labels)):
        say(f"the head of {config.init_from} is kept: its labels are those of the task")
        prefixes += ("classifier/",)
    elif pretrained.head:
        pretrained.drop_head()
    others = other_settings(config, pretrained) if load_head(config.head).embedding else []
    for warning in pretrained.warnings + others:
        say(f"warning: {warning}")
    if config.data.max_seq_length > pretrained.max_length:
        say(
            f"warning: config.data.max_seq_length is {config.data.max_seq_length}, but "
            f"{config.init_from} was trained with sequences of up to {pretrained.max_length} "
            "tokens: the positions beyond are untrained"
        )
    given = {name: x for name, x in pretrained.weights.items() if name.startswith(prefixes)}
    weights, drawn = complete_weights(trainer.model, given, config.seed)
    pooler = "bert/pooler/dense/kernel"
    if pooler in drawn or (pooler in weights and "pooler" in pretrained.untrained_heads):
        say(f"warning: {config.init_from} has no trained pooler: it is initialized at random")
    return trainer.state_of(unflatten(weights, trainer.model_config))


def rows_fingerprint(rows: TokenRows) -> str:
    """Computes the SHA-256 of all arrays and texts of `rows`."""
    digest = hashlib.sha256()
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        batch = rows.take(np.arange(first, min(first + _ROWS_AT_ONCE, len(rows))))
        for name in sorted(batch):
            digest.update(np.ascontiguousarray(batch[name]).tobytes())
    for text in rows.fingerprint_texts():
        digest.update(json.dumps(text).encode())
    return digest.hexdigest()
