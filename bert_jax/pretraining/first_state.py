"""The first state of a run of pre-training without checkpoints.

Such a run starts in one of three ways: from the state of another run
(`config.resume_from`), from given weights (`config.init_from` or a teacher's), or from scratch.
"""

from contextlib import closing
from typing import Any

import flax.linen as nn
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config import teacher_layers
from bert_jax.interop.pretrained import INITIAL_LENGTH, Pretrained
from bert_jax.interop.weights import (
    Weights,
    complete_weights,
    head_labels,
    head_of,
    keep_layers,
    model_shapes,
    unflatten,
)
from bert_jax.objectives.language_model import MaskedTokenPrediction
from bert_jax.objectives.terms import make_terms
from bert_jax.parallel import multihost
from bert_jax.tokenizers import Tokenizer
from bert_jax.training import start, workdir
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.state import TrainState
from bert_jax.training.trainer import Trainer


def guesses_at_random(config: ConfigDict, pretrained: Pretrained | None) -> bool:
    """Returns whether the head that fills masks was drawn from the seed, not read with the rest."""
    return pretrained is not None and any(
        label in pretrained.untrained_heads
        for name, term in zip(
            config.objective.terms, make_terms(config.objective.terms), strict=True
        )
        if isinstance(term, MaskedTokenPrediction)
        for label in head_labels(pretrained.model_config, [name]).values()
    )


def take_weights(config: ConfigDict, pretrained: Pretrained, tokenizer: Tokenizer) -> Weights:
    """Completes the model of `config.init_from` for pre-training and takes its weights.

    Tokens that `tokenizer` adds get rows of their own. Missing heads are initialized from the seed,
    with a warning.
    """
    # Weights without a vocabulary have a row for each token of the store; see `checks`.
    if config.data.add_tokens and pretrained.tokenizer:
        pretrained.extend(tokenizer)
    pretrained.complete(config.seed, config.objective.terms)
    for warning in pretrained.warnings:
        say(f"warning: {warning}")
    weights, pretrained.weights = pretrained.weights, {}
    return weights


def kept_layers(config: ConfigDict, teacher: Pretrained, model: nn.Module) -> Weights:
    """Returns the weights of its teacher that a student begins with; see `teacher_layers`.

    As in extract_distilbert.py of transformers' distillation project, the embeddings and the
    decoder's bias are among them, but no other weights of the heads.
    """
    layers, depth = teacher_layers(config), teacher.model["num_hidden_layers"]
    if not layers:
        return {}
    weights = {
        name: value
        for name, value in keep_layers(teacher.weights, layers).items()
        if not head_of(name) or name in ("mlm/output_bias", "mlm/output_embeddings")
    }
    shapes = model_shapes(model)
    wrong = [name for name in weights.keys() & shapes if weights[name].shape != shapes[name]]
    is_missing = len(layers) != config.model.num_hidden_layers or not set(layers) <= {*range(depth)}
    if wrong or is_missing:
        raise UserError(
            f"config.objective.teacher_layers is {config.objective.teacher_layers!r}; it must "
            f"name config.model.num_hidden_layers={config.model.num_hidden_layers} layers from 0 "
            f"to {depth - 1} of a teacher with the student's widths and positions"
        )
    return weights


def make_first_state(
    config: ConfigDict,
    directory: epath.PathLike,
    trainer: Trainer,
    pretrained: Pretrained | None,
    teacher: Pretrained | None,
    tokenizer: Tokenizer,
) -> tuple[TrainState, dict[str, Any]]:
    """Creates the first state of a run of pre-training without checkpoints of its own.

    Returns:
      The state, and what the checkpoint of config.resume_from stores beside it; else empty.
    """
    if config.resume_from:
        # The state of another run: weights, optimizer, step and position in the data.
        start.check_same_corpus(config.resume_from, directory)
        folder = epath.Path(config.resume_from) / workdir.CHECKPOINTS
        with closing(Checkpointer(folder, read_only=True)) as checkpoints:
            state, resume = checkpoints.restore_newest(trainer.abstract_state())
        # This run has no evaluation yet.
        return state, {**resume, "evaluated_step": -1}
    if pretrained:
        weights = take_weights(config, pretrained, tokenizer)
    elif teacher and (layers := kept_layers(config, teacher, trainer.model)):
        # All other weights are drawn from the seed.
        weights, _ = complete_weights(trainer.model, layers, config.seed)
    else:
        return trainer.init_state(), {}
    return trainer.state_of(unflatten(weights, trainer.model_config)), {}


def write_initial_length(
    config: ConfigDict, directory: epath.PathLike, pretrained: Pretrained | None
) -> None:
    """Writes the length of the sequences that initial weights were trained with."""
    record = epath.Path(directory) / workdir.INITIAL_TRAINING
    other = epath.Path(config.resume_from) / workdir.INITIAL_TRAINING
    if pretrained:
        files.write_json(record, {INITIAL_LENGTH: pretrained.max_length})
    elif config.resume_from and other.exists():
        files.write_json(record, files.read_json(other))


def copy_vocabulary(
    config: ConfigDict, directory: epath.PathLike, given: Pretrained | None
) -> None:
    """Copies the vocabulary of given weights into the work directory, if the config names it."""
    copy = copied_vocabulary(directory)
    if given and config.data.vocab == copy and multihost.is_first():
        given.tokenizer.save(epath.Path(copy))


def copied_vocabulary(directory: epath.PathLike) -> str:
    """Returns the path of the copy of the vocabulary of given weights in a work directory."""
    return str(epath.Path(directory) / workdir.INITIAL_VOCABULARY)
