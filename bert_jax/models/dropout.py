"""Dropout whose masks are computed where they are used, and never stored.

Whether an element is kept is a hash of the call's key and of the element's place in
the array. That costs a dozen integer operations an element, which a compiler fuses
into whatever reads or writes the array; the backward pass computes the mask again.
It does not depend on how the array is laid over devices, and each device computes its
own part alone.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

# Multipliers of the two-round 32-bit finalizer "lowbias32" (Wellons, "Prospecting for
# hash functions", 2018), as signed numbers: a kernel has no unsigned ones.
_FIRST_MULTIPLIER = 0x7FEB352D
_SECOND_MULTIPLIER = 0x846CA68B - 2**32
# 2**32 / golden ratio: neighbouring numbers land far apart (Knuth, TAOCP 6.4).
_SPREAD = 0x9E3779B9 - 2**32


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` and divides the others by 1 - rate.

    Needs a "dropout" rng unless it is deterministic. The mask of an example depends on
    that rng and on the example's row in the global batch.
    """

    rate: float

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Returns x, of any shape with at least two axes, with its type."""
        if deterministic or self.rate == 0:
            return x
        return _dropped(x, self.keys(x.shape[:-2]), self.rate)

    def keys(self, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        """Those of the masks that a call would draw: see `mask_keys`."""
        return mask_keys(self.make_rng("dropout"), shape)


def mask_keys(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Keys of as many masks as the shape has entries, no two of them alike.

    Args:
      key: A key of jax.random.
      shape: The axes of an array before its last two: one mask for each entry.

    Returns:
      Two int32 arrays of that shape, what `keeps` asks for.
    """
    seeds = jax.lax.bitcast_convert_type(jax.random.bits(key, (2,), jnp.uint32), jnp.int32)
    number = _places(shape)
    # One to one from entry to first key, whatever the seed.
    first = _mixed(number * jnp.int32(_SPREAD) + seeds[0])
    return first, _mixed(first + seeds[1])


def keeps(place: jax.Array, keys: tuple[jax.Array, jax.Array], rate: float) -> jax.Array:
    """Which elements of a mask are kept.

    Args:
      place: int32, the element's number in its mask: row times columns plus column.
      keys: Of `mask_keys`, int32 scalars or arrays that broadcast against `place`.
      rate: The probability of False, kept to within 2^-32.

    Returns:
      bool, of the shape of place and keys together.
    """
    first, second = keys
    x = (place ^ first) * jnp.int32(_FIRST_MULTIPLIER)
    x = x ^ jax.lax.shift_right_logical(x, jnp.int32(15))
    x = (x ^ second) * jnp.int32(_SECOND_MULTIPLIER)
    # Uniform over all int32; the highest bits, which decide, are the best mixed ones.
    return x >= jnp.int32(min(round(rate * 2**32) - 2**31, 2**31 - 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dropped(x: jax.Array, keys: tuple[jax.Array, jax.Array], rate: float) -> jax.Array:
    place = _places((1,) * (x.ndim - 2) + x.shape[-2:])
    kept = keeps(place, tuple(key[..., None, None] for key in keys), rate)
    # In float32: of bfloat16, 1 / (1 - rate) would be rounded, and every mean with it.
    return jnp.where(kept, x.astype(jnp.float32) * (1 / (1 - rate)), 0).astype(x.dtype)


def _forward(x, keys, rate):
    return _dropped(x, keys, rate), keys


def _backward(rate, keys, gradient):
    return _dropped(gradient, keys, rate), None


_dropped.defvjp(_forward, _backward)


def _places(shape: tuple[int, ...]) -> jax.Array:
    """int32, each entry's own number, counted along the last axis first."""
    places, stride = jnp.zeros((), jnp.int32), 1
    for axis in reversed(range(len(shape))):
        if shape[axis] > 1:
            places += jax.lax.broadcasted_iota(jnp.int32, shape, axis) * jnp.int32(stride)
        stride *= shape[axis]
    return jnp.broadcast_to(places, shape)


def _mixed(x: jax.Array) -> jax.Array:
    """A one-to-one map of int32 to itself in which every bit depends on all."""
    x = (x ^ jax.lax.shift_right_logical(x, jnp.int32(16))) * jnp.int32(_FIRST_MULTIPLIER)
    x = (x ^ jax.lax.shift_right_logical(x, jnp.int32(15))) * jnp.int32(_SECOND_MULTIPLIER)
    return x ^ jax.lax.shift_right_logical(x, jnp.int32(16))
