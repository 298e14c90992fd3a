"""The objective of pre-training: a weighted sum of terms."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.flops import pretraining_flops_per_sequence
from bert_jax.objectives.objective import SEQUENCE_SUMS, Batch, Metrics, apply
from bert_jax.objectives.term import PER_CHARACTER, Metric, Term

# Rows of an evaluation batch whose guesses are returned.
_GUESSED_ROWS = 16


@dataclasses.dataclass(frozen=True)
class WeightedTerms:
    """Loss = sum of weight * loss of each term; see `Objective`.

    A term of weight 0 is still computed and reported, but contributes no gradient.

    Attributes:
      teacher: The hyperparameters of the model whose weights are the `frozen` parameters; None
        if no term needs a teacher.
    """

    terms: tuple[Term, ...]
    weights: tuple[float, ...]
    teacher: BertConfig | None = None

    @property
    def metrics(self) -> list[Metric]:
        return [metric for term in self.terms for metric in term.metrics]

    @property
    def averaged(self) -> Sequence[str]:
        return ["loss", *(metric.name for metric in self.metrics if metric.in_training)]

    @property
    def progress(self) -> Mapping[str, str]:
        return {
            metric.name: term.name.upper().replace("_", " ")
            for term in self.terms
            for metric in term.metrics
            if metric.kind == "accuracy" and metric.in_training and metric.in_progress
        }

    def totals(self, batch: Batch) -> list[Any]:
        """Computes the total of each term.

        Microbatches differ in their number of masked tokens. Each loss is divided by the total of
        the whole batch, so the gradients add up to the gradient of the whole batch.
        """
        batch = _with_plain_mask(batch)
        return [term.total(batch) for term in self.terms]

    def loss(self, model, params, batch, rngs, totals, frozen, step):
        outputs = apply(model, params, batch, rngs)
        teacher_outputs = self._teacher_outputs(model.config, batch, frozen)
        metrics: Metrics = _sequence_sums(batch)
        batch = _with_plain_mask(batch)
        losses = []
        for term, weight, total in zip(self.terms, self.weights, totals, strict=True):
            sums = term.sums(outputs[term.name], batch, teacher_outputs.get(term.name))
            for metric in term.metrics:
                if metric.in_training:
                    metrics[metric.name] = sums[metric.name][0] / total
            losses.append(weight * metrics[term.metrics[0].name])
        loss = sum(losses[1:], losses[0])
        return loss, {"loss": loss} | metrics

    def evaluate(
        self, model: Any, params: Any, batch: Batch, frozen: Any, unigram_log_probs_V: jax.Array
    ) -> tuple[Metrics, dict[str, jax.Array]]:
        """Computes sums over the batch, and guesses for the masked tokens of its first rows.

        Each term's name maps to its sums and its baseline's. `num_sequences` is a number. The
        guesses come from the first term that has any (`Term.guesses`); they are empty if no term
        has any.
        """
        outputs = apply(model, params, batch)
        teacher_outputs = self._teacher_outputs(model.config, batch, frozen)
        sums: Metrics = {
            term.name: term.sums(outputs[term.name], batch, teacher_outputs.get(term.name))
            | term.baseline_sums(batch, unigram_log_probs_V)
            for term in self.terms
        }
        guesses = (term.guesses(outputs[term.name], batch, _GUESSED_ROWS) for term in self.terms)
        sums["num_sequences"] = jnp.sum(batch["example_weights"])
        return sums, next(filter(None, guesses), {})

    def results(
        self, sums: Mapping[str, Any], characters_per_token: float = 0.0
    ) -> dict[str, float]:
        """Turns sums over the held-out data into the metrics and baselines of all terms.

        Args:
          characters_per_token: The mean length of the tokens of the text; 0 if it is unknown.
        """
        results: dict[str, float] = {}
        for term in self.terms:
            found = term.results(sums[term.name])
            for metric in term.metrics:
                if metric.kind != PER_CHARACTER:
                    results[metric.name] = found[metric.name]
                elif characters_per_token:
                    results[metric.name] = found[term.metrics[0].name] / characters_per_token
                if metric.baseline:
                    results[metric.baseline] = found[metric.baseline]
        return results | {"num_sequences": int(sums["num_sequences"])}

    def flops(self, model, length, num_predictions, mean_square=None):
        sizes = length, num_predictions, self.teacher, mean_square
        return pretraining_flops_per_sequence(model.config, self.terms, *sizes)

    def teacher_model(self, config: BertConfig) -> PreTrainingModel:
        """Makes the teacher's model, with the dtype and the attention kernel of `config`."""
        terms = tuple(term for term in self.terms if term.needs_teacher)
        teacher = dataclasses.replace(
            self.teacher, dtype=config.dtype, fused_attention=config.fused_attention
        )
        return PreTrainingModel(teacher, terms)

    def _teacher_outputs(self, config: BertConfig, batch: Batch, frozen: Any) -> Mapping[str, Any]:
        """Computes the teacher's outputs, without dropout, by the names of the terms."""
        return apply(self.teacher_model(config), frozen, batch) if self.teacher else {}


def _with_plain_mask(batch: Batch) -> Batch:
    """Returns the batch with a mask of 0 and 1, as the sums of all terms expect it."""
    if "cls_positions" not in batch:
        return batch
    return {**batch, "attention_mask": (batch["attention_mask"] > 0).astype(jnp.int32)}


def _sequence_sums(batch: Batch) -> Metrics:
    """Computes `SEQUENCE_SUMS` of rows that several sequences share; empty for other rows."""
    if "cls_positions" not in batch:
        return {}
    number_P = jnp.arange(1, batch["cls_positions"].shape[1] + 1)
    is_of_BxPxL = batch["attention_mask"][:, None] == number_P[:, None]
    length_BxP = jnp.sum(is_of_BxPxL, axis=-1, dtype=jnp.float32)
    sums = jnp.sum(length_BxP > 0, dtype=jnp.float32), jnp.sum(length_BxP), jnp.sum(length_BxP**2)
    return dict(zip(SEQUENCE_SUMS, sums, strict=True))
