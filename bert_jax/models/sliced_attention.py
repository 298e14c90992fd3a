"""Attention on any device in memory that grows linearly with the length of a row.

The queries of a row are cut into slices. The backward pass computes the scores of a slice again.
"""

import functools

import jax
import jax.numpy as jnp

from bert_jax.models.dropout import Dropout, dropped

# Queries in a slice of global attention. A slice of local attention is as long as a window reaches.
_SLICE = 128
# The number of positions beyond the end of a row.
_OUTSIDE = -1


def sliced_attention(
    query_BxAxLxK: jax.Array,
    key_BxAxLxK: jax.Array,
    value_BxAxLxK: jax.Array,
    numbers_BxL: jax.Array,
    *,
    window: int | None,
    causal: bool,
    dropout: Dropout,
) -> jax.Array:
    """Returns softmax(query key^T) after dropout, times value: [B, A, L, K].

    Args:
      query_BxAxLxK, key_BxAxLxK, value_BxAxLxK: The heads; queries are already scaled.
      numbers_BxL: int32, at least 0. Tokens attend only to tokens with the same number.
      window: If not None, position i attends only to positions j with |i - j| <= window.
      causal: Each position attends only to itself and to the positions before it.
      dropout: The dropout of the probabilities. Its masks are not those of an array L x L.
    """
    batch, heads, length, _ = query_BxAxLxK.shape
    size = min(length, _SLICE if window is None else max(1, window))
    num_slices = -(-length // size)

    def cut(x: jax.Array, axis: int, value: int = 0) -> jax.Array:
        """Cuts an axis into S slices, each an element of a new axis before it."""
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, num_slices * size - length)
        x = jnp.pad(x, widths, constant_values=value)
        return x.reshape(*x.shape[:axis], num_slices, size, *x.shape[axis + 1 :])

    def is_seen(query_numbers, query_positions, key_numbers, key_positions):
        is_seen = query_numbers[..., :, None] == key_numbers[..., None, :]
        distance = query_positions[..., :, None] - key_positions[..., None, :]
        if causal:
            is_seen &= distance >= 0
        if window is not None:
            is_seen &= jnp.abs(distance) <= window
        return is_seen

    attend = jax.checkpoint(functools.partial(_attend, rate=dropout.rate))
    position_L = jnp.arange(length)
    query_BxAxSxQxK = cut(query_BxAxLxK, 2)
    position_SxQ, numbers_BxSxQ = cut(position_L, 0), cut(numbers_BxL, 1, _OUTSIDE)
    shape = (batch, heads, num_slices)
    keys_BxAxS = dropout.keys(shape) if dropout.rate else (jnp.zeros(shape, jnp.int32),) * 2

    if window is not None:
        # The keys of a slice are its own positions and those of the slices beside it.
        positions = jnp.arange(num_slices)[:, None] * size + jnp.arange(-size, 2 * size)
        seen_BxSxQxL = is_seen(
            numbers_BxSxQ, position_SxQ, _with_neighbors(numbers_BxSxQ, 1, _OUTSIDE), positions
        )
        context_BxAxSxQxK = attend(
            query_BxAxSxQxK,
            _with_neighbors(cut(key_BxAxLxK, 2), 2),
            _with_neighbors(cut(value_BxAxLxK, 2), 2),
            seen_BxSxQxL[:, None],
            keys_BxAxS,
        )
    else:

        def one_slice(inputs):
            query_BxAxQxK, numbers_BxQ, position_Q, keys_BxA = inputs
            seen_BxQxL = is_seen(numbers_BxQ, position_Q, numbers_BxL, position_L)
            return attend(query_BxAxQxK, key_BxAxLxK, value_BxAxLxK, seen_BxQxL[:, None], keys_BxA)

        context_SxBxAxQxK = jax.lax.map(
            one_slice,
            (
                jnp.moveaxis(query_BxAxSxQxK, 2, 0),
                jnp.moveaxis(numbers_BxSxQ, 1, 0),
                position_SxQ,
                jax.tree.map(lambda keys: jnp.moveaxis(keys, 2, 0), keys_BxAxS),
            ),
        )
        context_BxAxSxQxK = jnp.moveaxis(context_SxBxAxQxK, 0, 2)
    return context_BxAxSxQxK.reshape(batch, heads, -1, context_BxAxSxQxK.shape[-1])[:, :, :length]


def _attend(query, key, value, is_seen, keys, *, rate):
    """Computes attention of [..., Q, K] to [..., L, K]; `is_seen` is bool [..., Q, L]."""
    scores = jnp.einsum("...QK,...LK->...QL", query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(is_seen, scores, jnp.finfo(jnp.float32).min)
    probs = jax.nn.softmax(scores).astype(value.dtype)
    if rate:
        probs = dropped(probs, keys, rate)
    return jnp.einsum("...QL,...LK->...QK", probs, value)


def _with_neighbors(slices: jax.Array, axis: int, outside: int = 0) -> jax.Array:
    """Joins each slice with the ones before and after it; `axis` numbers the slices."""
    widths = [(0, 0)] * slices.ndim
    widths[axis] = (1, 1)
    padded = jnp.pad(slices, widths, constant_values=outside)
    num = slices.shape[axis]
    shifted = [jax.lax.slice_in_dim(padded, i, i + num, axis=axis) for i in range(3)]
    return jnp.concatenate(shifted, axis=axis + 1)
