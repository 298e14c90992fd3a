"""The activations of the feed-forward layer, the heads and the pooler."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

# Phi(x) = (1 + tanh(p(x))) / 2 with this odd polynomial p of x, x^3, x^5 and x^7. It is fitted to
# the normal distribution on [-5, 5] by reweighted least squares. The error is at most 6.7e-6.
_PHI_POLYNOMIAL = (0.797820262, 0.0365466581, -1.94453042e-4, -1.36880223e-5)
_PHI_RANGE = 5.0


def gelu(x: jax.Array) -> jax.Array:
    """Returns x Phi(x), the exact form (Hendrycks & Gimpel 2016).

    For bfloat16, Phi is approximated within 6.7e-6 and is 0 below -5. The error of the result is
    at most 3.4e-5 plus rounding. Below about -3, where gelu itself is under 0.004, this exceeds
    the rounding error. A TPU computes tanh and exp in hardware, but erf takes half as long as a
    matrix product.
    """
    return _gelu_bfloat16(x) if x.dtype == jnp.bfloat16 else nn.gelu(x, approximate=False)


@jax.custom_vjp
def _gelu_bfloat16(x: jax.Array) -> jax.Array:
    return _gelu_and_slope(x)[0]


def _gelu_and_slope(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns gelu and its slope, which makes the backward pass a single product."""
    x32 = x.astype(jnp.float32)
    cut = jnp.clip(x32, -_PHI_RANGE, _PHI_RANGE)
    square = cut * cut
    p1, p3, p5, p7 = _PHI_POLYNOMIAL
    odd = cut * (p1 + square * (p3 + square * (p5 + square * p7)))
    phi = jnp.where(x32 < -_PHI_RANGE, 0, 0.5 + 0.5 * jnp.tanh(odd))
    density = jnp.exp(-0.5 * x32 * x32) / math.sqrt(2 * math.pi)
    return (x32 * phi).astype(x.dtype), (phi + x32 * density).astype(x.dtype)


def _gelu_backward(slope: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    return (gradient * slope,)


_gelu_bfloat16.defvjp(_gelu_and_slope, _gelu_backward)

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    # The first release used the exact form; `gelu_new` is transformers' name
    # for the tanh approximation that google-research/bert changed to later.
    "gelu": gelu,
    "gelu_new": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
    "tanh": jnp.tanh,
}
