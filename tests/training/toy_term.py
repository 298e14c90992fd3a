"""A user's own term, which config.objective.terms names as MODULE:NAME."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.base import parts
from bert_jax.base.batch import BatchField
from bert_jax.objectives.term import Metric, Term, example_weights

NAME = "tests.training.toy_term:Distance"
parts.trust((NAME, "tests.training.toy_term:NeedsMissingField"))


@dataclasses.dataclass(frozen=True)
class Distance(Term):
    """The squared distance between the first hidden states of student and teacher.

    It also reports random numbers from the keys "sample" and "dropout".
    """

    name = "toy"
    label = "toy"
    metrics = (
        Metric("toy_loss", "distance", "loss", in_progress=True),
        Metric("toy_sample", "sample", "sample"),
        Metric("toy_sample_squared", "square of the sample", "sample"),
        Metric("toy_dropout", "dropout", "sample"),
    )
    needs_teacher = True

    def heads(self, config):
        return {}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        sample = jax.random.uniform(model.make_rng("sample"))
        has_dropout = model.has_rng("dropout")
        dropout = jax.random.uniform(model.make_rng("dropout")) if has_dropout else 0.0
        return hidden_BxLxD[:, 0], sample, dropout

    def total(self, batch):
        return batch["input_ids"].shape[0]

    def sums(self, outputs, batch, teacher=None):
        hidden_BxD, sample, dropout = outputs
        weights_B = example_weights(batch)
        distances_B = jnp.sum((hidden_BxD - teacher[0]) ** 2, axis=-1)
        weight = jnp.sum(weights_B)
        return {
            "toy_loss": (jnp.sum(weights_B * distances_B), weight),
            "toy_sample": (weight * sample, weight),
            "toy_sample_squared": (weight * sample**2, weight),
            "toy_dropout": (weight * dropout, weight),
        }

    def head_flops(self, config, length, num_predictions):
        return 0


class NeedsMissingField(Distance):
    """A term with a batch field that no rows or corruption declare."""

    fields = {"replaced": BatchField("BL", "int32")}
