"""The metrics of the terms that predict tokens."""

import math
from collections.abc import Mapping

from bert_jax.objectives.term import Metric

# Keeps the mean finite when a batch has no token to predict (run_pretraining.py).
DENOMINATOR_EPSILON = 1e-5
# exp(709) is the largest power that a float holds.
_MOST_NATS = 700.0


def language_model_metrics(name: str, label: str) -> tuple[Metric, ...]:
    """Returns loss, accuracy and perplexity of a term, each with its unigram baseline."""
    units = {"loss": "loss (nats)", "accuracy": "accuracy", "perplexity": "perplexity"}
    return tuple(
        Metric(
            f"{name}_{kind}",
            f"{label} {words}",
            kind,
            baseline=f"unigram_{name}_{kind}",
            baseline_label="unigram frequencies",
            in_training=kind != "perplexity",
            in_progress=kind != "perplexity",
        )
        for kind, words in units.items()
    )


def language_model_results(name: str, sums: Mapping[str, float]) -> dict[str, float]:
    """Returns the values of `language_model_metrics` and of their baselines."""
    weight = max(sums["weight"], 1.0)
    results = {}
    for prefix in ("", "unigram_"):
        loss = sums[f"{prefix}loss"] / weight
        results[f"{prefix}{name}_loss"] = loss
        results[f"{prefix}{name}_accuracy"] = sums[f"{prefix}accuracy"] / weight
        results[f"{prefix}{name}_perplexity"] = math.exp(min(loss, _MOST_NATS))
    return results
