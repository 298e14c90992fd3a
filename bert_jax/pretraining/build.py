"""Builds the trainer of a pre-training config from the parts that the config names."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.base.errors import UserError
from bert_jax.config import teacher_layers
from bert_jax.config.command_line import load_config_file
from bert_jax.interop.families import load_family
from bert_jax.interop.generator import PARTS as GENERATOR_PARTS
from bert_jax.interop.generator import TERM as GENERATOR_TERM
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import complete_weights, unflatten
from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.term import Term
from bert_jax.objectives.terms import make_terms
from bert_jax.training import workdir
from bert_jax.training.flops import pretraining_flops_per_sequence
from bert_jax.training.objective import declared_fields, make_objective
from bert_jax.training.stages import resolve_stages
from bert_jax.training.state import abstract_params
from bert_jax.training.trainer import Trainer


def read_pretrained(path: str) -> Pretrained:
    """Reads the model at a path, without rows beyond its vocabulary.

    Raises:
      UserError: The path holds no model, or a damaged one.
    """
    # A run that begins with random weights must not load the converters.
    from bert_jax.interop import formats

    pretrained = formats.read(path)
    pretrained.cut_padding()
    return pretrained


def recipe_of(model: Pretrained) -> ConfigDict:
    """Returns the config that a model is trained with, without terms that need a teacher.

    It is that of the run that made the model or, for a released one, the config of its family.

    Raises:
      UserError: No config belongs to the model, its run had no term without a teacher or a part
        from outside the package, or the model lacks its generator.
    """
    trained, family = model.training.get("config"), load_family(model.family)
    if trained and not workdir.is_finetuning(trained):
        config = config_lib.from_dict(trained)
        # Refuses parts that only the stored config names.
        make_objective(config)
    elif family.recipe and not model.model["causal"]:
        config = load_config_file(family.recipe)
    else:
        causal = " with config.model.causal" * model.model["causal"]
        raise UserError(
            f"no config belongs to {model.source}, of the family {model.family}{causal}: write "
            f"a config for it, and give --config.init_from={model.source}"
        )
    terms = zip(config.objective.terms, config.objective.weights, strict=True)
    kept = [(term, x) for term, x in terms if not make_terms([term])[0].needs_teacher]
    if not kept:
        raise UserError(
            f"all terms of the run of {model.source} need a teacher: "
            f"{', '.join(config.objective.terms)}; give its config with "
            f"--config.init_from={model.source}"
        )
    if any(term == GENERATOR_TERM for term, _ in kept) and not model.model["generator_size"]:
        raise UserError(
            f"{model.source} is a discriminator without its generator, which trains it: put "
            f"both models into one directory, as {' and '.join(GENERATOR_PARTS)}, and name that"
        )
    with config.unlocked():
        config.objective.terms, config.objective.weights = zip(*kept, strict=True)
    return config


def read_teacher(config: ConfigDict) -> Pretrained | None:
    """Reads the teacher of a config; None if no term needs one, or none is named.

    Raises:
      UserError: The teacher cannot be read.
    """
    terms = make_terms(config.objective.terms)
    if not (config.objective.teacher and any(term.needs_teacher for term in terms)):
        return None
    try:
        return read_pretrained(config.objective.teacher)
    except UserError as error:
        raise UserError(f"config.objective.teacher: {error}") from error


def _check_teacher(config: ConfigDict, teacher: Pretrained, terms: Sequence[Term]) -> None:
    """Refuses a teacher that has no trained masked-LM head or does not fit the config."""
    model = teacher.model
    length = max(stage.max_seq_length for stage in resolve_stages(config))
    problem = teacher.missing_head("masked_lm")
    if model["vocab_size"] != config.model.vocab_size:
        problem = (
            f"its vocabulary has {model['vocab_size']} tokens, but config.model.vocab_size is "
            f"{config.model.vocab_size}"
        )
    elif model["max_position_embeddings"] < length:
        problem = (
            f"it has {model['max_position_embeddings']} positions, but config.train.stages has "
            f"sequences of {length} tokens"
        )
    elif model["hidden_size"] != config.model.hidden_size and any(
        term.needs_teacher_width for term in terms
    ):
        problem = (
            f"its width is {model['hidden_size']}, but config.model.hidden_size is "
            f"{config.model.hidden_size}; leave hidden_cosine out of config.objective.terms"
        )
    if problem:
        raise UserError(f"config.objective.teacher is {config.objective.teacher}: {problem}")


def make_trainer(
    config: ConfigDict,
    devices: Sequence[jax.Device] | None = None,
    teacher: Pretrained | None = None,
) -> Trainer:
    """Builds the trainer of a validated config, on all devices by default.

    Args:
      teacher: The teacher; by default the one that the config names. If the config names none,
        the teacher is a model of zeros with the student's shape and the layers that
        config.objective.teacher_layers names, which is enough to compile or time the step.

    Raises:
      UserError: The family is unknown, the teacher does not fit, or as for `make_objective`,
        `read_teacher` and `Trainer.create`.
    """
    # Only exports need the family, but an unknown one is refused before the training.
    load_family(config.family)
    objective = make_objective(config)
    if any(term.needs_teacher for term in objective.terms):
        teacher = teacher or read_teacher(config)
        if teacher:
            _check_teacher(config, teacher, objective.terms)
        shape = BertConfig(**(teacher.model if teacher else _default_teacher(config)))
        objective = dataclasses.replace(objective, teacher=shape)

    def frozen(model_config: BertConfig) -> Any:
        if not objective.teacher:
            return {}
        model = objective.teacher_model(model_config)
        if teacher:
            return unflatten(complete_weights(model, teacher.weights, seed=0)[0], model.config)
        abstract = nn.unbox(abstract_params(model))
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)

    return Trainer.create(
        config,
        lambda model_config: PreTrainingModel(model_config, objective.terms),
        objective,
        resolve_stages(config),
        flops_per_sequence=lambda model_config, stage, mean_square=None: (
            pretraining_flops_per_sequence(
                model_config,
                objective.terms,
                stage.max_seq_length,
                stage.max_predictions_per_seq,
                objective.teacher,
                mean_square,
            )
        ),
        fields=declared_fields(config),
        frozen=frozen,
        devices=devices,
    )


def _default_teacher(config: ConfigDict) -> dict[str, Any]:
    """Returns the model keys of the teacher if the config names none; see `make_trainer`."""
    depth = 1 + max(teacher_layers(config), default=config.model.num_hidden_layers - 1)
    return {**config.model, "num_hidden_layers": depth}
