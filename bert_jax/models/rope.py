"""Rotary positions (Su et al. 2021, "RoFormer", arXiv:2104.09864)."""

import jax
import jax.numpy as jnp
import numpy as np


def rotate(x: jax.Array, theta: float, scale: float = 1.0, dtype: str = "float32") -> jax.Array:
    """Turns each pair of elements of queries or keys by an angle proportional to the position.

    Element i of the first half of the last axis and element i of the second half are a pair, as in
    `transformers`. Its angle is position / scale * theta^(-2 i / K). The product of a query and a
    key then depends only on the distance between them, so positions count from 0 in every row, even
    if several sequences share it.

    Args:
      x: [..., L, K] of any dtype. The result has the same; the computation is in float32.
      theta, scale, dtype: `theta`, `rope_scale` and `rope_dtype` of `BertConfig`.
    """
    length, depth = x.shape[-2:]
    frequencies = theta ** (-np.arange(0, depth, 2) / depth)
    if dtype != "float32":
        frequencies = frequencies.astype(dtype).astype(np.float64)
    frequencies = np.tile(frequencies / scale, 2).astype(np.float32)
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * frequencies
    # This product is exact. It replaces each element by the other one of its pair, with the sign of
    # its sine. Moving elements within a row would take a TPU longer.
    others = np.kron([[0, 1], [-1, 0]], np.eye(depth // 2))
    other = jnp.matmul(x, others.astype(x.dtype), precision="highest").astype(jnp.float32)
    return (x.astype(jnp.float32) * jnp.cos(angles) + other * jnp.sin(angles)).astype(x.dtype)
