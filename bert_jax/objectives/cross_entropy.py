"""Losses over the vocabulary without all logits in memory at once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.models.embeddings import vocabulary_logits
from bert_jax.objectives.language_model import language_model_sums

# Positions whose logits are in memory at once: 0.5 GB for 256 rows and a vocabulary of 30,522.
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
    table_WxE = model.bert.embeddings.word_embeddings
    return DecoderInputs(model.mlm.transformed(hidden_BxLxD), table_WxE, model.mlm.decoder_bias())


def sliced_cross_entropy(
    inputs: DecoderInputs, targets_BxL: jax.Array, weights_BxL: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the sums of weight * -log p(target) and of weight * [target is the top prediction].

    Args:
      inputs: The decoder's inputs.
      targets_BxL: int32.
      weights_BxL: float32, 0 where nothing is predicted.
    """

    def sums(hidden_BxCxE, targets_BxC, weights_BxC):
        logits_BxCxW = vocabulary_logits(hidden_BxCxE, inputs.table_WxE, inputs.bias_W)
        scores = language_model_sums(logits_BxCxW, targets_BxC, weights_BxC)
        return scores["loss"], scores["accuracy"]

    return _sums_of_slices(sums, inputs.hidden_BxLxE, targets_BxL, weights_BxL)


def sliced_divergence(
    student: DecoderInputs, teacher: DecoderInputs, weights_BxL: jax.Array, temperature: float
) -> tuple[jax.Array, jax.Array]:
    """Returns the sums of weight * KL(teacher | student) and of weight * [same top prediction].

    Args:
      student, teacher: The decoders' inputs; the widths may differ.
      weights_BxL: float32.
      temperature: The divisor of both models' logits; at least 1. With less, the logits of
        entries beyond the vocabulary would be infinite.
    """

    def sums(hidden_BxCxE, teacher_hidden_BxCxE, weights_BxC):
        student_BxCxW, teacher_BxCxW = (
            vocabulary_logits(hidden, inputs.table_WxE, inputs.bias_W) / temperature
            for hidden, inputs in ((hidden_BxCxE, student), (teacher_hidden_BxCxE, teacher))
        )
        probs_BxCxW = jax.nn.softmax(teacher_BxCxW)
        # At entries beyond the vocabulary, both logits are the same finite number.
        divergence_BxC = jnp.sum(probs_BxCxW * (teacher_BxCxW - student_BxCxW), axis=-1)
        divergence_BxC += jax.nn.logsumexp(student_BxCxW, axis=-1)
        divergence_BxC -= jax.nn.logsumexp(teacher_BxCxW, axis=-1)
        # Maxima are cheaper than an argmax, especially on a CPU.
        is_best_BxCxW = teacher_BxCxW >= jnp.max(teacher_BxCxW, axis=-1, keepdims=True)
        at_best_BxC = jnp.max(jnp.where(is_best_BxCxW, student_BxCxW, -jnp.inf), axis=-1)
        same_BxC = at_best_BxC >= jnp.max(student_BxCxW, axis=-1)
        return jnp.sum(weights_BxC * divergence_BxC), jnp.sum(weights_BxC * same_BxC)

    return _sums_of_slices(sums, student.hidden_BxLxE, teacher.hidden_BxLxE, weights_BxL)


def _sums_of_slices(
    sums: Callable[..., tuple[jax.Array, jax.Array]], *arrays: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Adds up what `sums` returns for slices of arrays [B, L, ...].

    Logits are computed a few positions at a time, and again in the backward pass: the logits
    of 256 x 512 positions and 30,522 entries would take 16 GB.
    """
    padding = -arrays[0].shape[1] % SLICE_POSITIONS

    def sliced(x: jax.Array) -> jax.Array:
        """Cuts [B, L, ...] into [slices, B, SLICE_POSITIONS, ...]."""
        x = jnp.pad(x, [(0, 0), (0, padding), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(x.reshape(x.shape[0], -1, SLICE_POSITIONS, *x.shape[2:]), 1, 0)

    def add_slice(totals, slices):
        return tuple(map(jnp.add, totals, sums(*slices))), None

    zero = jnp.zeros((), jnp.float32)
    add_slice = jax.checkpoint(add_slice, prevent_cse=False)
    return jax.lax.scan(add_slice, (zero, zero), tuple(map(sliced, arrays)))[0]
