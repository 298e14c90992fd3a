"""Builds the stage and the trainer of fine-tuning from a completed config."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.base.errors import UserError
from bert_jax.finetuning.layer_rates import scaled_by_layer
from bert_jax.heads import load_head
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.tokenizers import Tokenizer
from bert_jax.training.stages import Stage, curve_of_run
from bert_jax.training.trainer import Trainer, make_layout, make_model_config


def make_trainer(
    config: ConfigDict,
    stage: Stage,
    class_counts: Mapping[str, int] = MappingProxyType({}),
    devices: Sequence[jax.Device] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Trainer:
    """Builds the trainer of a filled-in config, for all devices by default.

    Args:
      class_counts: The training examples of each class; see `Task.class_counts`.
      tokenizer: See `Head.model_options`.
    """
    head, decay = load_head(config.head), config.optimizer.layer_decay
    # Blocks that share their parameters have one rate.
    num_layers = config.model.layer_groups or config.model.num_hidden_layers
    own = {}
    if config.head == "sparse" and config.embedding.static_queries:
        rate = config.embedding.query_learning_rate
        own["query_weights"] = rate / config.schedule.peak_learning_rate
    scaling = scaled_by_layer(num_layers, decay, own) if decay != 1 or own else None
    layout = make_layout(config, devices)
    model_config = make_model_config(config, layout)
    model = head.make_model(model_config, len(config.labels), config, tokenizer)
    loss = head.make_loss(config, class_counts, stage)
    trainer = Trainer.create(
        config,
        layout,
        model,
        loss,
        [stage],
        scaling=scaling,
        accumulation_steps=1 if head.divides_batch else None,
    )
    config_lib.check_batch(config, num_data_shards(trainer.mesh), jax.process_count())
    return trainer


def make_stage(config: ConfigDict, rows: TokenRows) -> Stage:
    """Makes the only stage of the run. Each choice or text of an example is a sequence."""
    num_steps = int(len(rows) * config.train.num_epochs / config.train.batch_size)
    if not num_steps:
        raise UserError(
            f"config.train.num_epochs is {config.train.num_epochs:g}, which gives less than one "
            f"batch of config.train.batch_size={config.train.batch_size} from {len(rows)} examples"
        )
    first = rows.draw(np.arange(1), config.seed, step=0)
    texts = math.prod(first["input_ids"].shape[1:-1])
    if "document_ids" in first:
        texts += first["document_ids"].shape[1]
    return only_stage(config, num_steps, texts)


def only_stage(config: ConfigDict, num_steps: int, texts: int) -> Stage:
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
