"""Builds the objective and the trainer of pre-training from the parts that a config names."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax.base.batch import BatchFields, shared_row_fields
from bert_jax.base.errors import UserError
from bert_jax.batches.stream import batch_fields
from bert_jax.config import teacher_layers
from bert_jax.interop.families import FAMILIES, load_family
from bert_jax.interop.weights import complete_weights, unflatten
from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.weighted import WeightedTerms
from bert_jax.training.stages import resolve_stages
from bert_jax.training.state import abstract_params
from bert_jax.training.trainer import Trainer, make_layout, make_model_config


def check_family(config: ConfigDict) -> None:
    """Refuses a family that cannot be loaded, although only exports need it."""
    if config.family not in FAMILIES:
        load_family(config.family)


def declared_fields(config: ConfigDict) -> BatchFields:
    """Returns the fields of a training batch, which the rows and the corruption declare."""
    data = config.data
    return batch_fields(data.rows, data.corruption, data.pair_labels, data.max_pairs_per_row)


def make_objective(config: ConfigDict) -> WeightedTerms:
    """Builds the objective of a config, without a teacher."""
    terms = make_terms(config.objective.terms, config.objective)
    objective = WeightedTerms(terms, tuple(config.objective.weights))
    provided, data = declared_fields(config), config.data
    for name, term in zip(config.objective.terms, objective.terms, strict=True):
        fields = term.fields if data.max_pairs_per_row == 1 else shared_row_fields(term.fields)
        missing = sorted(field for field, kind in fields.items() if provided.get(field) != kind)
        labels = f" with config.data.pair_labels={data.pair_labels}" * (data.rows == "pairs")
        corruption = f"config.data.corruption={data.corruption}"
        for is_broken, problem in (
            (
                missing,
                f"which needs {''.join(missing[:1])} in each batch; config.data.rows={data.rows}"
                f"{labels} and {corruption} do not provide it",
            ),
            (
                term.is_left_to_right and not config.model.causal,
                "but config.model.causal is False, so that each position sees the token it "
                "predicts; set it to True",
            ),
            (
                term.is_left_to_right and "masked_lm_positions" in provided,
                f"but {corruption} replaces the tokens it predicts; set it to none",
            ),
        ):
            if is_broken:
                raise UserError(f"config.objective.terms has {name}, {problem}")
    layers = config.model.num_decoder_layers
    if any(term.needs_decoder for term in objective.terms) != (layers > 0):
        raise UserError(
            f"config.model.num_decoder_layers is {layers}, but config.objective.terms is "
            f"{config.objective.terms!r}; a model with a decoder is trained by the term denoising, "
            "which no other model has"
        )
    return objective


def make_trainer(
    config: ConfigDict, devices: Sequence[jax.Device] | None = None, teacher: Any = None
) -> Trainer:
    """Builds the trainer of a validated config, on all devices by default.

    Args:
      teacher: The `Pretrained` that the config names as teacher. If it names none, the teacher is a
        model of zeros with the student's shape and the layers that config.objective.teacher_layers
        names, which is enough to compile or time the step.
    """
    objective = make_objective(config)
    if any(term.needs_teacher for term in objective.terms):
        depth = 1 + max(teacher_layers(config), default=config.model.num_hidden_layers - 1)
        default = {**config.model, "num_hidden_layers": depth}
        shape = BertConfig(**(teacher.model if teacher else default))
        objective = dataclasses.replace(objective, teacher=shape)
    layout = make_layout(config, devices)
    model = PreTrainingModel(make_model_config(config, layout), objective.terms)
    frozen = {}
    if objective.teacher:
        teacher_model = objective.teacher_model(model.config)
        if teacher:
            weights, _ = complete_weights(teacher_model, teacher.weights, seed=0)
            frozen = unflatten(weights, teacher_model.config)
        else:
            abstract = nn.unbox(abstract_params(teacher_model))
            frozen = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)
    return Trainer.create(
        config,
        layout,
        model,
        objective,
        resolve_stages(config),
        fields=declared_fields(config),
        frozen=frozen,
    )
