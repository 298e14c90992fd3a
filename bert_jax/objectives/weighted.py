"""The objective of pre-training: a weighted sum of terms."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.objectives.objective import Batch, Metrics, apply
from bert_jax.objectives.term import Metric, Term


@dataclasses.dataclass(frozen=True)
class WeightedTerms:
    """Loss = sum of weight * loss of each term; see `Objective`.

    A term of weight 0 is still computed and reported, but trains nothing.
    """

    terms: tuple[Term, ...]
    weights: tuple[float, ...]
    eval_operands = 1

    @property
    def metrics(self) -> list[Metric]:
        """The metrics of all terms, in order."""
        return [metric for term in self.terms for metric in term.metrics]

    @property
    def averaged(self) -> Sequence[str]:
        return ["loss", *(metric.name for metric in self.metrics if metric.in_training)]

    @property
    def progress(self) -> Mapping[str, str]:
        return {
            metric.name: term.name.upper()
            for term in self.terms
            for metric in term.metrics
            if metric.kind == "accuracy" and metric.in_training and metric.in_progress
        }

    def totals(self, batch: Batch) -> list[Any]:
        """Returns the total of each term.

        Microbatches differ in their number of masked tokens. Each loss is divided by the total of
        the whole batch, so the gradients add up to that of the whole batch.
        """
        return [term.total(batch) for term in self.terms]

    def loss(
        self,
        model: Any,
        params: Any,
        batch: Batch,
        rngs: Mapping[str, jax.Array],
        totals: list[Any],
        frozen: Mapping[str, Any],
    ) -> tuple[jax.Array, Metrics]:
        outputs = apply(model, params, batch, rngs)
        metrics: Metrics = {}
        losses = []
        for term, weight, total in zip(self.terms, self.weights, totals, strict=True):
            sums = term.sums(outputs[term.name], batch, frozen.get(term.name))
            for metric in term.metrics:
                if metric.in_training:
                    metrics[metric.name] = sums[metric.name.removeprefix(f"{term.name}_")] / total
            losses.append(weight * metrics[term.metrics[0].name])
        loss = sum(losses[1:], losses[0])
        return loss, {"loss": loss} | metrics

    def evaluate(
        self,
        model: Any,
        params: Any,
        batch: Batch,
        frozen: Mapping[str, Any],
        unigram_log_probs_V: jax.Array,
    ) -> Metrics:
        """Returns sums over the batch: {term: its sums and its baseline's}, and the sequences."""
        outputs = apply(model, params, batch)
        sums: Metrics = {
            term.name: term.sums(outputs[term.name], batch, frozen.get(term.name))
            | term.baseline_sums(batch, unigram_log_probs_V)
            for term in self.terms
        }
        return sums | {"num_sequences": jnp.sum(batch["example_weights"])}

    def results(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Turns sums over the held-out data into the metrics and baselines of all terms."""
        results: dict[str, float] = {}
        for term in self.terms:
            results |= term.results(sums[term.name])
        return results | {"num_sequences": int(sums["num_sequences"])}

    def frozen_parameters(self, config: Any) -> dict[str, Any]:
        """Returns the parameters of each term that are not trained, by the term's name."""
        frozen = {term.name: term.frozen_parameters(config) for term in self.terms}
        return {name: params for name, params in frozen.items() if params is not None}
