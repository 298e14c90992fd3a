"""Splits a model with a generator into a discriminator and a generator, and merges them.

`transformers` has a class for each, so they are exported to two directories. Both contain the
shared embeddings.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import Weights

TERM, MASKED_LM = "generator", "masked_lm"
# The directories of the two models.
PARTS = DISCRIMINATOR, GENERATOR = "discriminator", "generator"
_HEAD, _SHARED = "generator/", "bert/embeddings/"
# Prefixes of the generator's weights, and their prefixes in a separate model.
_MOVED = {"generator/mlm/": "mlm/", "generator/": "bert/"}


def split(pretrained: Pretrained) -> dict[str, Pretrained]:
    """Splits a model into its discriminator and its generator, by the names of PARTS."""
    own = {n: x for n, x in pretrained.weights.items() if not n.startswith(_HEAD)}
    generator = {name: x for name, x in own.items() if name.startswith(_SHARED)}
    for name, value in pretrained.weights.items():
        if name.startswith(_HEAD):
            prefix = next(prefix for prefix in _MOVED if name.startswith(prefix))
            generator[_MOVED[prefix] + name.removeprefix(prefix)] = value
    shape = pretrained.model_config.generator
    keys = {key: getattr(shape, key) for key in pretrained.model}
    terms = tuple(term for term in pretrained.terms if term != TERM)
    return {
        DISCRIMINATOR: _part(pretrained, own, pretrained.model | {"generator_size": 0.0}, terms),
        GENERATOR: _part(pretrained, generator, keys, (MASKED_LM,)),
    }


def merge(discriminator: Pretrained, generator: Pretrained) -> Pretrained:
    """Merges the two parts of a model; inverts `split`."""
    size = generator.model["hidden_size"] / discriminator.model["hidden_size"]
    model = discriminator.model | {"generator_size": size}
    merged = dataclasses.replace(discriminator, model=model)
    for key, value in generator.model.items():
        expected = getattr(merged.model_config.generator, key)
        if value != expected:
            raise UserError(
                f"{generator.source}: {key} is {value!r}, but a generator of this width for "
                f"{discriminator.source} has {expected!r}"
            )
    weights = dict(discriminator.weights)
    moved_back = {separate: joint for joint, separate in _MOVED.items()}
    for name, value in generator.weights.items():
        if not name.startswith(_SHARED):
            prefix = next(prefix for prefix in moved_back if name.startswith(prefix))
            weights[moved_back[prefix] + name.removeprefix(prefix)] = value
        elif not np.array_equal(value, weights[name]):
            raise UserError(
                f"{generator.source} and {discriminator.source} differ in {name}, which a "
                "generator and its discriminator share"
            )
    return dataclasses.replace(
        merged,
        weights=weights,
        terms=(TERM, *discriminator.terms),
        warnings=[*discriminator.warnings, *generator.warnings],
        training=_merged_training(discriminator, generator),
    )


def _part(
    pretrained: Pretrained, weights: Weights, model: dict[str, Any], terms: tuple[str, ...]
) -> Pretrained:
    """Makes one of the two models, with its part of the objective."""
    training = pretrained.training
    if training.get("config"):
        objective = training["config"]["objective"]
        weight_of = dict(zip(pretrained.terms, objective["weights"], strict=True))
        weight_of[MASKED_LM] = weight_of[TERM]
        training = _with_objective(training, terms, [weight_of[term] for term in terms])
    return dataclasses.replace(
        pretrained,
        weights=weights,
        model=model,
        terms=terms,
        training=training,
        warnings=list(pretrained.warnings),
    )


def _merged_training(discriminator: Pretrained, generator: Pretrained) -> dict[str, Any]:
    """Describes how the discriminator was trained, with the objective of both."""
    configs = [part.training.get("config") for part in (generator, discriminator)]
    if not all(configs):
        return {}
    weights = [weight for config in configs for weight in config["objective"]["weights"]]
    terms = (TERM, *discriminator.terms)
    return _with_objective(discriminator.training, terms, weights)


def _with_objective(
    training: dict[str, Any], terms: Sequence[str], weights: Sequence[float]
) -> dict[str, Any]:
    config = training["config"]
    objective = config["objective"] | {"terms": list(terms), "weights": list(weights)}
    return training | {"config": config | {"objective": objective}}
