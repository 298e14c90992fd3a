"""Starts a run of pre-training.

A run starts in one of four ways: from its own newest checkpoint, from the state of another run
(`config.resume_from`), from given weights (`config.init_from` or a teacher's), or from scratch.
"""

from contextlib import closing
from typing import Any

import flax.linen as nn
from etils import epath
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config import teacher_layers
from bert_jax.config.command_line import ConfigSource
from bert_jax.interop.pretrained import INITIAL_LENGTH, Pretrained
from bert_jax.interop.weights import (
    Weights,
    complete_weights,
    head_of,
    keep_layers,
    model_shapes,
    unflatten,
)
from bert_jax.parallel import multihost
from bert_jax.pretraining import settings
from bert_jax.store.manifest import given_tokenizer
from bert_jax.tokenizers import Tokenizer
from bert_jax.tokenizers.extension import replaced_pieces
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.state import TrainState
from bert_jax.training.trainer import Trainer


def first_state(
    config: ConfigDict,
    directory: epath.PathLike,
    trainer: Trainer,
    checkpointer: Checkpointer,
    pretrained: Pretrained | None,
    teacher: Pretrained | None,
    tokenizer: Tokenizer,
) -> tuple[TrainState, dict[str, Any]]:
    """Creates or restores the first state of a run of pre-training.

    Args:
      pretrained: The model of `config.init_from`, if the run begins with it.
      teacher: The teacher, if there is one.
      tokenizer: The tokenizer of the run, whose vocabulary may extend that of `pretrained`.

    Returns:
      The state, and what the checkpoint of this state stores beside it; empty for a new run.

    Raises:
      UserError: The weights or the other run do not fit, or no checkpoint can be read.
    """
    # The run continues from its own newest checkpoint, even if the config names another source.
    if restored := checkpointer.restore_newest(trainer.abstract_state()):
        return restored
    if config.resume_from:
        # The state of another run: weights, optimizer, step and position in the data.
        workdir.check_same_corpus(config.resume_from, directory)
        folder = epath.Path(config.resume_from) / workdir.CHECKPOINTS
        with closing(Checkpointer(folder, read_only=True)) as checkpoints:
            state, resume = checkpoints.restore_newest(trainer.abstract_state())
        # This run has no evaluation yet.
        return state, {**resume, "evaluated_step": -1}
    if pretrained:
        weights = take_weights(config, pretrained, tokenizer)
    elif teacher and teacher_layers(config):
        weights = take_layers(config, teacher, trainer.model)
    else:
        return trainer.init_state(), {}
    return trainer.state_of(unflatten(weights, trainer.model_config)), {}


def open_checkpoints(config: ConfigDict, directory: epath.PathLike) -> Checkpointer:
    """Opens the checkpoints of a run; `config.checkpoint` defines which ones are kept."""
    return Checkpointer(
        epath.Path(directory) / workdir.CHECKPOINTS,
        keep=config.checkpoint.keep,
        keep_every_steps=config.checkpoint.keep_every_steps,
    )


def check(
    config: ConfigDict,
    directory: epath.PathLike,
    trainer: Trainer,
    pretrained: Pretrained | None,
    teacher: Pretrained | None,
) -> None:
    """Checks that pre-training can start, before any work is done.

    Args:
      config: The completed config.
      directory: The work directory, which gets a copy of the vocabulary of the weights or the
        teacher if the config names it.
      pretrained: The model of `config.init_from`, if the run begins with it.
      teacher: The teacher, if there is one.

    Raises:
      UserError: A teacher is missing, the run of `config.resume_from` does not fit the config, or
        the config does not name the vocabulary of the weights.
    """
    if trainer.objective.teacher and not teacher:
        raise UserError(
            "config.objective.terms needs a teacher: set --config.objective.teacher=DIR to a "
            "trained model, such as the work directory of python -m bert_jax.main "
            "--config=configs/tiny.py --workdir=DIR"
        )
    if config.resume_from and not workdir.has_checkpoints(directory):
        workdir.check_same_run(config.resume_from, config)
        step = workdir.newest_checkpoint(config.resume_from)
        if step >= config.train.num_steps:
            raise UserError(
                f"config.resume_from: {config.resume_from} is already at step {step:,}, and this "
                f"run ends at step {config.train.num_steps:,} (config.train.num_steps): nothing is "
                "left to do; set a larger config.train.num_steps to train it further, or "
                "config.init_from for a new run with its weights"
            )
    given = pretrained or teacher
    if not given:
        return
    if config.data.store:
        store = workdir.store_directory(directory, config)
        tokenizer = tokenizers.load(store / "tokenizer")
        # The tokenizer of a store has the added tokens.
        extends = pretrained and config.data.add_tokens and pretrained.tokenizer
        if not (extends and replaced_pieces(pretrained.tokenizer, tokenizer) is not None):
            check_tokenizer(given, tokenizer, f"the token store {store}")
        return
    if pretrained and not config.data.vocab:
        # In a vocabulary trained on the run's own text, every id would mean another token.
        raise UserError(
            f"config.init_from: {config.init_from} has no vocabulary; set --config.data.vocab to "
            "the one that its weights were trained with"
        )
    if config.data.vocab and multihost.is_first():
        copy = epath.Path(directory) / workdir.INITIAL_VOCABULARY
        if config.data.vocab == str(copy):
            given.tokenizer.save(copy)
        name = f"config.data.vocab={config.data.vocab}"
        check_tokenizer(given, given_tokenizer(config.data), name)


def claim(
    config: ConfigDict,
    directory: epath.PathLike,
    source: ConfigSource,
    pretrained: Pretrained | None,
) -> None:
    """Writes the config, and the length of the sequences that initial weights were trained with."""
    workdir.claim(directory, config, settings.recorded(config, source))
    record = epath.Path(directory) / workdir.INITIAL_TRAINING
    other = epath.Path(config.resume_from) / workdir.INITIAL_TRAINING
    if pretrained:
        files.write_json(record, {INITIAL_LENGTH: pretrained.max_length})
    elif config.resume_from and other.exists():
        files.write_json(record, files.read_json(other))


def take_weights(config: ConfigDict, pretrained: Pretrained, tokenizer: Tokenizer) -> Weights:
    """Completes the model of `config.init_from` for pre-training and takes its weights.

    Tokens that `tokenizer` adds get rows of their own. Missing heads are initialized from the seed,
    with a warning.
    """
    # Weights without a vocabulary have a row for each token of the store; see `check_tokenizer`.
    if config.data.add_tokens and pretrained.tokenizer:
        pretrained.extend(tokenizer)
    pretrained.complete(config.seed, config.objective.terms)
    for warning in pretrained.warnings:
        say(f"warning: {warning}")
    weights, pretrained.weights = pretrained.weights, {}
    return weights


def take_layers(config: ConfigDict, teacher: Pretrained, model: nn.Module) -> Weights:
    """Makes the weights of a student that begins with layers of its teacher.

    As in extract_distilbert.py of transformers' distillation project, the embeddings and the
    decoder's bias are the teacher's too. All other weights of the heads are drawn from the seed.

    Raises:
      UserError: The teacher lacks a layer, or its layers have another shape.
    """
    layers, depth = teacher_layers(config), teacher.model["num_hidden_layers"]
    if len(layers) != config.model.num_hidden_layers or not set(layers) <= set(range(depth)):
        raise UserError(
            f"config.objective.teacher_layers is {config.objective.teacher_layers!r}; it must "
            f"name config.model.num_hidden_layers={config.model.num_hidden_layers} layers from 0 "
            f"to {depth - 1}"
        )
    weights = {
        name: value
        for name, value in keep_layers(teacher.weights, layers).items()
        if not head_of(name) or name == "mlm/output_bias"
    }
    for name, shape in model_shapes(model).items():
        if name in weights and weights[name].shape != shape:
            raise UserError(
                f"config.objective.teacher_layers is {config.objective.teacher_layers!r}, but "
                f"{name} of {teacher.source} is {weights[name].shape}, not {shape}: give the "
                "student the teacher's widths and positions, or leave teacher_layers empty"
            )
    return complete_weights(model, weights, config.seed)[0]


def check_tokenizer(pretrained: Pretrained, tokenizer: Tokenizer, name: str) -> None:
    """Refuses a vocabulary other than the one that the weights were trained with.

    Args:
      name: The name of the vocabulary in messages.
    """
    theirs, rows = pretrained.tokenizer, pretrained.model["vocab_size"]
    if theirs is not None and theirs.fingerprint == tokenizer.fingerprint:
        return
    if rows != tokenizer.vocab_size:
        difference = f"it has {tokenizer.vocab_size} tokens, not {rows}"
    elif theirs is None:
        return
    elif theirs.options != tokenizer.options:
        difference = f"its options are {tokenizer.options}, not {theirs.options}"
    else:
        difference = "the tokens differ"
    raise UserError(
        f"{name} has a different vocabulary from the weights of {pretrained.source}: {difference}"
    )
