"""The interface of a pre-training term, such as masked-LM."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.base.batch import BatchFields
from bert_jax.models import BertConfig

# The kind of a metric that is the term's loss divided by the mean number of characters of a token.
# Only evaluations on text of a known length have it.
PER_CHARACTER = "loss_per_character"
# The sum and the weight of each metric.
Sums = dict[str, tuple[jax.Array, jax.Array]]


class Metric(NamedTuple):
    """A result of a term and how it is shown.

    Attributes:
      name: The key in `metrics.jsonl`; held-out values get the prefix `eval_`.
      label: The text in tables and plots, with the unit: "masked-LM loss (nats)".
      kind: "loss", "accuracy" (from 0 to 1; more is better), PER_CHARACTER, or another word for any
        other metric (less is better).
      baseline: The name of the result of a baseline without context; empty for none.
      baseline_label: The baseline in words: "unigram frequencies".
      in_training: Whether the value is also averaged over training steps.
      in_progress: Whether the value is shown during the run.
      percent_masked: The percentage of tokens that are masked where the value is measured; 0 if it
        does not depend on that. The metrics of a term that have it are plotted as a curve.
    """

    name: str
    label: str
    kind: str
    baseline: str = ""
    baseline_label: str = ""
    in_training: bool = True
    in_progress: bool = False
    percent_masked: float = 0.0

    def text(self, value: float) -> str:
        """Formats an accuracy in percent, a perplexity with one decimal, the rest with three."""
        match self.kind:
            case "accuracy":
                return f"{value:.1%}"
            case "perplexity":
                return f"{value:.1f}"
        return f"{value:.3f}"


class Term(abc.ABC):
    """A prediction that a model is trained to make, with its heads, loss and metrics.

    Attributes:
      name: The prefix of the term's metrics and the key of its outputs: "mlm".
      label: The term in words: "masked LM".
      fields: The batch fields that the term needs in addition to the encoder's inputs. If several
        sequences share a row (`base.batch.shared_row_fields`), a field NAME_labels with a value for
        each row has one for each sequence, and a field NAME_weights says which of them count.
      metrics: The results that the term reports. The first is its loss.
      needs_pooler: Whether the term reads the pooler.
      needs_teacher: Whether the term compares the model with a frozen teacher.
      needs_teacher_width: Whether the teacher must have the width of the model.
      is_left_to_right: Whether the term predicts each token from those before it. Positions must
        not see their targets, and no token may be masked.
      needs_decoder: Whether the term reads the decoder.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    fields: ClassVar[BatchFields] = {}
    metrics: ClassVar[tuple[Metric, ...]]
    needs_pooler: ClassVar[bool] = False
    needs_teacher: ClassVar[bool] = False
    needs_teacher_width: ClassVar[bool] = False
    is_left_to_right: ClassVar[bool] = False
    needs_decoder: ClassVar[bool] = False

    @abc.abstractmethod
    def heads(self, config: BertConfig) -> Mapping[str, nn.Module]:
        """Makes the modules of the term, by the names of their parameters.

        Terms that return the same name share that head.
        """

    def prepare(
        self, model: Any, batch: Mapping[str, jax.Array], *, deterministic: bool
    ) -> Mapping[str, jax.Array]:
        """Makes the batch that the encoder and all terms read; called inside the model.

        A term may replace the encoder's inputs or add fields of its own, for example with the
        predictions of another network. `sums` gets the original batch.

        Args:
          model: The bound model; see `outputs`. `model.make_rng("sample")` gives a key, which is
            fixed in evaluation.
          batch: All fields, as the terms before this one left them.
        """
        return batch

    @abc.abstractmethod
    def outputs(
        self,
        model: Any,
        hidden_BxLxD: jax.Array,
        pooled_BxD: jax.Array | None,
        batch: Mapping[str, jax.Array],
    ) -> Any:
        """Applies the heads; called inside the model.

        Args:
          model: The bound model, with the heads as attributes and the encoder as `bert`.
          pooled_BxD: The pooler's output; None unless `needs_pooler`.
        """

    @abc.abstractmethod
    def total(self, batch: Mapping[str, jax.Array]) -> jax.Array | int:
        """Computes the total of a batch, by which the sums over its parts are divided."""

    @abc.abstractmethod
    def sums(self, outputs: Any, batch: Mapping[str, jax.Array], teacher: Any = None) -> Sums:
        """Computes the sum and the weight of each metric over a part of a batch, by its name.

        Both are float32 scalars. In training, a metric is its sum divided by `total`; in
        evaluation, by its weight. `results` may use sums with other names.

        Args:
          outputs: The result of `outputs`.
          batch: All fields. In evaluation they include `example_weights` [B] float32: 0 for rows
            that only fill up the last batch.
          teacher: The result of `outputs` for the teacher, which has the same heads; None unless
            `needs_teacher`.
        """

    def baseline_sums(self, batch: Mapping[str, jax.Array], unigram_log_probs_V: jax.Array) -> Sums:
        """Computes the sums of a baseline without context over an evaluation batch."""
        return {}

    def results(self, sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Turns sums over the held-out data into at least the term's metrics and baselines.

        Those of the kind PER_CHARACTER are left to the caller. By default, each is its sum divided
        by its weight, or 0 without weight.
        """
        return {name: total / weight if weight else 0.0 for name, (total, weight) in sums.items()}

    def guesses(
        self, outputs: Any, batch: Mapping[str, jax.Array], rows: int
    ) -> dict[str, jax.Array]:
        """Returns guesses for the first rows of a batch; empty unless the term fills masks."""
        return {}

    def encoders(self, config: BertConfig) -> tuple[BertConfig, ...]:
        """Returns the configs of other encoders that `prepare` runs on the rows.

        They are used only to count FLOPs.
        """
        return ()

    @abc.abstractmethod
    def head_flops(self, config: BertConfig, length: int, num_predictions: int) -> int:
        """Computes the FLOPs of the heads' matrix products, forward, for one sequence."""


def loss_and_accuracy(name: str, loss: jax.Array, correct: jax.Array, weight: jax.Array) -> Sums:
    """Computes the sums of the metrics NAME_loss and NAME_accuracy."""
    return {f"{name}_loss": (loss, weight), f"{name}_accuracy": (correct, weight)}


def example_weights(batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the weight of each row, float32 [B]; all ones in training."""
    if "example_weights" in batch:
        return batch["example_weights"]
    return jnp.ones(next(iter(batch.values())).shape[0], jnp.float32)


def token_weights(batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the weight of each token, float32 [B, L]; 0 at padding."""
    return batch["attention_mask"] * example_weights(batch)[:, None]


@jax.vmap
def with_tokens(
    ids_L: jax.Array, positions_M: jax.Array, new_M: jax.Array, is_used_M: jax.Array
) -> jax.Array:
    """Puts new ids at some positions of each row [B, ...]; positions that are used are distinct."""
    change_M = jnp.where(is_used_M, new_M - ids_L[positions_M], 0)
    return ids_L.at[positions_M].add(change_M)


def original_ids(batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the ids before the corruption, int32 [B, L]."""
    return with_tokens(
        batch["input_ids"],
        batch["masked_lm_positions"],
        batch["masked_lm_ids"],
        batch["masked_lm_weights"] > 0,
    )
