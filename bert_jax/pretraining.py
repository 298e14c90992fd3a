"""Builds the trainer of a pre-training config from the parts that the config names."""

from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

from bert_jax.config import objective_terms
from bert_jax.data.stream import batch_fields
from bert_jax.errors import UserError
from bert_jax.models import PreTrainingModel
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.weighted import WeightedTerms
from bert_jax.training.flops import pretraining_flops_per_sequence
from bert_jax.training.stages import resolve_stages
from bert_jax.training.trainer import Trainer


def make_objective(config: ConfigDict) -> WeightedTerms:
    """Returns the objective of a config.

    Raises:
      UserError: A term is unknown, or needs a batch field that the rows and the corruption of
        the config do not provide.
    """
    terms = make_terms(objective_terms(config), config.objective)
    objective = WeightedTerms(terms, tuple(config.objective.weights))
    given = batch_fields(config.data.rows, config.data.corruption)
    for name, term in zip(objective_terms(config), objective.terms, strict=True):
        if missing := term.fields.keys() - given.keys():
            raise UserError(
                f"config.objective.terms has {name}, which needs {min(missing)} in each batch; "
                f"config.data.rows={config.data.rows} and "
                f"config.data.corruption={config.data.corruption} do not give it"
            )
    return objective


def make_trainer(config: ConfigDict, devices: Sequence[jax.Device] | None = None) -> Trainer:
    """Builds the trainer of a validated config, on all devices by default.

    Raises:
      UserError: See `make_objective` and `Trainer.create`.
    """
    objective = make_objective(config)
    return Trainer.create(
        config,
        lambda model_config: PreTrainingModel(model_config, objective.terms),
        objective,
        resolve_stages(config.train),
        flops_per_sequence=lambda model_config, stage: pretraining_flops_per_sequence(
            model_config, objective.terms, stage.max_seq_length, stage.max_predictions_per_seq
        ),
        fields=batch_fields(config.data.rows, config.data.corruption),
        frozen=objective.frozen_parameters,
        devices=devices,
    )
