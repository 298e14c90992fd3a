"""Dropout with masks that are recomputed instead of stored.

A hash of the call's key and of the element's position in the array decides whether an element is
kept. The hash costs a dozen integer operations per element, which the compiler fuses with the
operation that reads or writes the array. The backward pass computes the mask again. The mask does
not depend on how the array is sharded over devices, and each device computes only its part.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

# Multipliers of the two-round 32-bit finalizer "lowbias32" (Wellons, "Prospecting for
# hash functions", 2018), as signed numbers: Pallas kernels have no unsigned ones.
_FIRST_MULTIPLIER = 0x7FEB352D
_SECOND_MULTIPLIER = 0x846CA68B - 2**32
# 2**32 / golden ratio spreads neighboring numbers far apart (Knuth, TAOCP 6.4).
_SPREAD = 0x9E3779B9 - 2**32


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` and divides the others by 1 - rate.

    Needs a "dropout" rng unless it is deterministic. The mask of an example depends on that rng
    and on the example's row in the global batch.
    """

    rate: float

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Applies dropout to x, which has at least two axes; the dtype is unchanged."""
        if deterministic or self.rate == 0:
            return x
        return dropped(x, self.keys(x.shape[:-2]), self.rate)

    def keys(self, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        """Returns the keys of the masks that a call would draw; see `mask_keys`."""
        return mask_keys(self.make_rng("dropout"), shape)


def mask_keys(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Returns a different key for each mask of an array.

    Args:
      key: A key of jax.random.
      shape: The axes of the array before its last two, which index the masks.

    Returns:
      Two int32 arrays of that shape, for `keeps`.
    """
    seeds = jax.lax.bitcast_convert_type(jax.random.bits(key, (2,), jnp.uint32), jnp.int32)
    number = _row_major_index(shape)
    # For any seed, different numbers give different first keys.
    first = _mixed(number * jnp.int32(_SPREAD) + seeds[0])
    return first, _mixed(first + seeds[1])


def keeps(index: jax.Array, keys: tuple[jax.Array, jax.Array], rate: float) -> jax.Array:
    """Returns which elements of a mask are kept.

    Args:
      index: int32 index of the element in its mask: row * columns + column.
      keys: From `mask_keys`, int32 scalars or arrays that broadcast against `index`.
      rate: The probability of False, accurate to within 2^-32.

    Returns:
      bool, of the broadcast shape of index and keys.
    """
    first, second = keys
    x = (index ^ first) * jnp.int32(_FIRST_MULTIPLIER)
    x = x ^ jax.lax.shift_right_logical(x, jnp.int32(15))
    x = (x ^ second) * jnp.int32(_SECOND_MULTIPLIER)
    # x is uniform over int32. Its highest bits, which matter most here, are mixed best.
    return x >= jnp.int32(min(round(rate * 2**32) - 2**31, 2**31 - 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def dropped(x: jax.Array, keys: tuple[jax.Array, jax.Array], rate: float) -> jax.Array:
    index = _row_major_index((1,) * (x.ndim - 2) + x.shape[-2:])
    kept = keeps(index, tuple(key[..., None, None] for key in keys), rate)
    # In bfloat16 the factor 1 / (1 - rate) would be rounded, and bias every mean.
    return jnp.where(kept, x.astype(jnp.float32) * (1 / (1 - rate)), 0).astype(x.dtype)


dropped.defvjp(
    lambda x, keys, rate: (dropped(x, keys, rate), keys),
    lambda rate, keys, gradient: (dropped(gradient, keys, rate), None),
)


def _row_major_index(shape: tuple[int, ...]) -> jax.Array:
    """Returns the row-major index of each element of an array, int32 of its shape."""
    index, stride = jnp.zeros((), jnp.int32), 1
    for axis in reversed(range(len(shape))):
        if shape[axis] > 1:
            index += jax.lax.broadcasted_iota(jnp.int32, shape, axis) * jnp.int32(stride)
        stride *= shape[axis]
    return jnp.broadcast_to(index, shape)


def _mixed(x: jax.Array) -> jax.Array:
    """Maps int32 one to one onto int32; every output bit depends on every input bit."""
    x = (x ^ jax.lax.shift_right_logical(x, jnp.int32(16))) * jnp.int32(_FIRST_MULTIPLIER)
    x = (x ^ jax.lax.shift_right_logical(x, jnp.int32(15))) * jnp.int32(_SECOND_MULTIPLIER)
    return x ^ jax.lax.shift_right_logical(x, jnp.int32(16))
