"""Losses over the vocabulary without all logits in memory at once."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.models.input_embeddings import vocabulary_logits
from bert_jax.objectives.language_model import TokenPrediction, token_sums
from bert_jax.objectives.term import loss_and_accuracy

# S, the positions whose logits are in memory at once: 0.5 GB for 256 rows and 30,522 tokens.
SLICE_POSITIONS = 16


class DecoderInputs(NamedTuple):
    """The operands of a decoder, from which logits are computed.

    Attributes:
      hidden_BxLxE: The output of the head's dense layer.
      table_WxE: The word embeddings.
      bias_W: float32 bias of the decoder.
    """

    hidden_BxLxE: jax.Array
    table_WxE: jax.Array
    bias_W: jax.Array


def decoder_inputs(model: Any, hidden_BxLxD: jax.Array) -> DecoderInputs:
    """Returns the operands of the head `mlm` for all positions; called inside the model."""
    table_WxE = model.mlm.decoder_table(model.bert.embeddings.table_WxE)
    return DecoderInputs(model.mlm.transformed(hidden_BxLxD), table_WxE, model.mlm.decoder_bias())


def sliced_cross_entropy(
    inputs: DecoderInputs,
    targets_BxL: jax.Array,
    weights_BxL: jax.Array,
    axis: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Computes the sums of weight * -log p(target) and of weight * [target is the top prediction].

    Targets are int32; weights are float32, 0 where nothing is predicted. With `axis` 1, each row
    has sums of its own, float32 [B].
    """

    def sums(hidden_BxSxE, targets_BxS, weights_BxS):
        logits_BxSxW = vocabulary_logits(hidden_BxSxE, inputs.table_WxE, inputs.bias_W)
        return token_sums(logits_BxSxW, targets_BxS, weights_BxS, axis)

    zero = jnp.zeros(() if axis is None else len(targets_BxL), jnp.float32)
    return _sums_of_slices(sums, zero, inputs.hidden_BxLxE, targets_BxL, weights_BxL)


def sliced_divergence(
    student: DecoderInputs, teacher: DecoderInputs, weights_BxL: jax.Array, temperature: float
) -> tuple[jax.Array, jax.Array]:
    """Computes the sums of weight * KL(teacher | student) and of weight * [same top prediction].

    Args:
      student, teacher: The widths may differ.
      weights_BxL: float32.
      temperature: The divisor of both models' logits; at least 1. With less, the logits of
        ids beyond the vocabulary would be infinite.
    """

    def sums(hidden_BxSxE, teacher_hidden_BxSxE, weights_BxS):
        student_BxSxW, teacher_BxSxW = (
            vocabulary_logits(hidden, inputs.table_WxE, inputs.bias_W) / temperature
            for hidden, inputs in ((hidden_BxSxE, student), (teacher_hidden_BxSxE, teacher))
        )
        probs_BxSxW = jax.nn.softmax(teacher_BxSxW)
        # For ids beyond the vocabulary, both logits are the same finite number.
        divergence_BxS = jnp.sum(probs_BxSxW * (teacher_BxSxW - student_BxSxW), axis=-1)
        divergence_BxS += jax.nn.logsumexp(student_BxSxW, axis=-1)
        divergence_BxS -= jax.nn.logsumexp(teacher_BxSxW, axis=-1)
        # Maxima are cheaper than an argmax, especially on a CPU.
        is_best_BxSxW = teacher_BxSxW >= jnp.max(teacher_BxSxW, axis=-1, keepdims=True)
        at_best_BxS = jnp.max(jnp.where(is_best_BxSxW, student_BxSxW, -jnp.inf), axis=-1)
        same_BxS = at_best_BxS >= jnp.max(student_BxSxW, axis=-1)
        return jnp.sum(weights_BxS * divergence_BxS), jnp.sum(weights_BxS * same_BxS)

    zero = jnp.zeros((), jnp.float32)
    return _sums_of_slices(sums, zero, student.hidden_BxLxE, teacher.hidden_BxLxE, weights_BxL)


def _sums_of_slices(
    sums: Callable[..., tuple[jax.Array, jax.Array]], zero: jax.Array, *arrays: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Adds up what `sums` returns for slices of arrays [B, L, ...].

    Logits are computed a few positions at a time, and again in the backward pass: the logits
    of 256 x 512 positions and 30,522 tokens would take 16 GB.
    """
    padding = -arrays[0].shape[1] % SLICE_POSITIONS

    def sliced(x: jax.Array) -> jax.Array:
        """Cuts [B, L, ...] into [slices, B, SLICE_POSITIONS, ...]."""
        x = jnp.pad(x, [(0, 0), (0, padding), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(x.reshape(x.shape[0], -1, SLICE_POSITIONS, *x.shape[2:]), 1, 0)

    def add_slice(totals, slices):
        return tuple(map(jnp.add, totals, sums(*slices))), None

    add_slice = jax.checkpoint(add_slice, prevent_cse=False)
    return jax.lax.scan(add_slice, (zero, zero), tuple(map(sliced, arrays)))[0]


class TextPrediction(TokenPrediction):
    """Predicts the tokens of whole rows; `outputs` returns `DecoderInputs`."""

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns `DecoderInputs`, from which the loss computes a few logits at a time."""
        return decoder_inputs(model, hidden_BxLxD)

    @abc.abstractmethod
    def targets(self, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Returns the tokens to predict, int32 [B, L], and their weights, float32 [B, L]."""

    def sums(self, outputs, batch, teacher=None):
        targets_BxL, weights_BxL = self.targets(batch)
        sums = sliced_cross_entropy(outputs, targets_BxL, weights_BxL)
        return loss_and_accuracy(self.name, *sums, jnp.sum(weights_BxL))

    def baseline_sums(self, batch, unigram_log_probs_V):
        """Scores unigram frequencies; the guess is always the most frequent token.

        Tokens that the training text lacks, such as [SEP], have the lowest probability. They do not
        count in the baseline's loss, which favors the baseline.
        """
        targets_BxL, weights_BxL = self.targets(batch)
        lowest = jnp.min(unigram_log_probs_V)
        log_probs_V = jnp.where(unigram_log_probs_V == lowest, 0.0, unigram_log_probs_V)
        guess = jnp.argmax(unigram_log_probs_V)
        loss = -jnp.sum(weights_BxL * log_probs_V[targets_BxL])
        correct = jnp.sum(weights_BxL * (targets_BxL == guess))
        return loss_and_accuracy(f"unigram_{self.name}", loss, correct, jnp.sum(weights_BxL))
