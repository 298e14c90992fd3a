"""Projections, LayerNorm and the activations, from which every block is built."""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from bert_jax.models.bert_config import BertConfig

# The smallest square of a length, whose root has a gradient.
SMALLEST_SQUARE = 1e-24
# Phi(x) = (1 + tanh(p(x))) / 2 with this odd polynomial p of x, x^3, x^5 and x^7. It is fitted to
# the normal distribution on [-5, 5] by reweighted least squares. The error is at most 6.7e-6.
_PHI_POLYNOMIAL = (0.797820262, 0.0365466581, -1.94453042e-4, -1.36880223e-5)
_PHI_RANGE = 5.0


@flax.struct.dataclass
class Matrix(nn.LogicallyPartitioned):
    """The box of a parameter that states are multiplied by, unlike a table, a scale or a bias.

    Attributes:
      inputs, outputs: The axes that a product sums over, and those of its result. Any other axes
        number several matrices, such as those of experts.
      share: The mean fraction of the tokens that each matrix multiplies: below 1 for experts.
      dtype: The dtype that its products convert it to.
    """

    inputs: tuple[int, ...] = flax.struct.field(pytree_node=False, default=(0,))
    outputs: tuple[int, ...] = flax.struct.field(pytree_node=False, default=(1,))
    share: float = flax.struct.field(pytree_node=False, default=1)
    dtype: Any = flax.struct.field(pytree_node=False, default=jnp.float32)


def matrix_init(
    config: BertConfig,
    *axes: str,
    inputs: tuple[int, ...] = (0,),
    is_output: bool = False,
    share: float = 1,
):
    """Returns the initializer of a `Matrix`; the axes after its inputs are its outputs."""
    init = weight_init(config, *axes, is_output=is_output)
    outputs = tuple(range(inputs[-1] + 1, len(axes)))

    def init_matrix(*arguments) -> Matrix:
        box = init(*arguments)
        return Matrix(
            box.value, box.names, inputs=inputs, outputs=outputs, share=share, dtype=config.dtype
        )

    return init_matrix


def matrices(boxed: Any) -> dict[str, Matrix]:
    """Returns the matrices among parameters in their boxes, by their paths joined with slashes."""
    found = jax.tree_util.tree_leaves_with_path(
        boxed, is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata)
    )
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): box
        for path, box in found
        if isinstance(box, Matrix)
    }


def weight_init(config: BertConfig, *axes: str, is_output: bool = False):
    """Returns BERT's initializer: a normal distribution truncated at two standard deviations.

    `initializer_range` is the standard deviation before truncation, as in TensorFlow's
    truncated_normal_initializer. JAX's initializer of that name rescales its draws to give the
    truncated distribution this deviation. `is_output` marks the matrices that
    `output_init_by_depth` scales.
    """
    deviation = config.initializer_range
    if is_output and config.output_init_by_depth:
        deviation /= math.sqrt(2 * config.num_hidden_layers)

    def init(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
        return deviation * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)

    return nn.with_logical_partitioning(init, axes)


def zeros_init(*axes: str):
    """Returns the initializer of every bias: zeros."""
    return nn.with_logical_partitioning(nn.initializers.zeros_init(), axes)


class Projection(nn.Module):
    """An affine map of the last axis from D to F, linear if its part of the model has no biases.

    Attributes:
      features: F.
      axes: Logical names of the kernel's two axes.
      activated: Whether an activation follows. The compiler then fuses the sum of the bias's
        gradient into the activation's backward pass; elsewhere `add_bias` does the sum.
      is_output: See `weight_init`.
      part: See `BertConfig.has_biases`.
    """

    config: BertConfig
    features: int
    axes: tuple[str, str]
    activated: bool = False
    is_output: bool = False
    part: str = ""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = self.config.dtype
        shape = (x.shape[-1], self.features)
        init = matrix_init(self.config, *self.axes, is_output=self.is_output)
        kernel = self.param("kernel", init, shape)
        product = x.astype(dtype) @ kernel.astype(dtype)
        if not self.config.has_biases(self.part):
            return product
        bias = self.param("bias", zeros_init(self.axes[1]), shape[1:])
        return product + bias.astype(dtype) if self.activated else add_bias(product, bias)


@jax.custom_vjp
def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
    """Adds a float32 bias [F] to x [..., F]; the result has the dtype of x."""
    return x + bias.astype(x.dtype)


add_bias.defvjp(
    lambda x, bias: (add_bias(x, bias), None),
    lambda _, gradient: (gradient, column_sums(gradient)),
)


def column_sums(x: jax.Array) -> jax.Array:
    """Computes the sums over all axes but the last, float32 [F].

    For bfloat16 this is a product with ones, which is exact and accumulates in float32. A
    TPU's matrix unit computes it almost for free; its vector unit would take as long as a layer.
    On GPUs it is a sum, which the compiler computes in the kernel that writes x if it can.
    """
    rows = tuple(range(x.ndim - 1))
    if x.dtype != jnp.bfloat16:
        return jnp.sum(x, rows, dtype=jnp.float32)

    def product(x):
        # The matrix unit takes eight rows at once; a single row would be no cheaper.
        ones = jnp.ones((8, *x.shape[:-1]), x.dtype)
        axes = ((tuple(axis + 1 for axis in rows), rows), ((), ()))
        return jax.lax.dot_general(ones, x, axes, preferred_element_type=jnp.float32)[0]

    return jax.lax.platform_dependent(
        x, cuda=lambda x: jnp.sum(x, rows, dtype=jnp.float32), default=product
    )


class LayerNorm(nn.Module):
    """LayerNorm or RMSNorm with float32 statistics and parameters, output in `config.dtype`.

    The hand-written backward pass stores the input with its mean and inverse deviation, not the
    normalized values.

    Attributes:
      has_bias: Whether there is a bias in a model with biases.
    """

    config: BertConfig
    has_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalizes the last axis of x."""
        ones = nn.with_logical_partitioning(nn.initializers.ones_init(), ("norm",))
        scale = self.param("scale", ones, x.shape[-1:])
        c = self.config
        bias, is_centered = jnp.zeros(x.shape[-1:]), c.norm_kind == "layer"
        if c.biases and self.has_bias and is_centered:
            bias = self.param("bias", zeros_init("norm"), x.shape[-1:])
        output = _normalized(x, scale, bias, c.layer_norm_eps, c.dtype, is_centered)
        return stored(output) if c.stores_activations else output


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _normalized(x, scale, bias, epsilon, dtype, is_centered):
    return _normalize(x, scale, bias, epsilon, dtype, is_centered)[0]


def _normalize(x, scale, bias, epsilon, dtype, is_centered):
    x32 = x.astype(jnp.float32)
    mean = jnp.mean(x32, axis=-1, keepdims=True) if is_centered else 0.0
    # Computes both moments in one pass over the activations.
    variance = jnp.maximum(jnp.mean(x32 * x32, axis=-1, keepdims=True) - mean * mean, 0.0)
    inverse = jax.lax.rsqrt(variance + epsilon)
    output = (x32 - mean) * (inverse * scale) + bias
    return output.astype(dtype), (x, scale, mean, inverse)


def _normalize_backward(epsilon, dtype, is_centered, residuals, gradient):
    x, scale, mean, inverse = residuals
    gradient = gradient.astype(jnp.float32)
    unit = (x.astype(jnp.float32) - mean) * inverse
    rows = tuple(range(x.ndim - 1))
    scale_gradient, bias_gradient = jnp.sum(gradient * unit, rows), jnp.sum(gradient, rows)
    gradient = gradient * scale
    along_mean = jnp.mean(gradient, axis=-1, keepdims=True) if is_centered else 0.0
    along_unit = unit * jnp.mean(gradient * unit, axis=-1, keepdims=True)
    x_gradient = ((gradient - along_mean - along_unit) * inverse).astype(x.dtype)
    # Without the barrier, the compiler for GPUs would compute this gradient twice: for the residual
    # connection and for the dropout before it, whose mask it would then store in the forward pass.
    x_gradient = jax.lax.platform_dependent(
        x_gradient, cuda=jax.lax.optimization_barrier, default=lambda x: x
    )
    return x_gradient, scale_gradient, bias_gradient


_normalized.defvjp(_normalize, _normalize_backward)


@jax.custom_vjp
def stored(x: jax.Array) -> jax.Array:
    """Has the compiler store an array, instead of computing it again in each product."""
    return jax.lax.optimization_barrier(x)


# The gradient has no barrier: it may be computed where it is read.
stored.defvjp(lambda x: (stored(x), None), lambda _, gradient: (gradient,))


def unit(x: jax.Array) -> jax.Array:
    """Scales vectors [..., D] to length 1."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x**2, axis=-1, keepdims=True), SMALLEST_SQUARE))


def gelu(x: jax.Array) -> jax.Array:
    """Computes x Phi(x), the exact form (Hendrycks & Gimpel 2016).

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


def _gelu_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keeps the slope for the backward pass, but x on GPUs, where `_gelu_backward` computes it.

    The compiler for GPUs moves the computation of the slope to the backward pass anyway. It would
    keep x and a float32 array, which have three times the bytes of the slope.
    """
    output, slope = _gelu_and_slope(x)
    return output, jax.lax.platform_dependent(
        x, slope, cuda=lambda x, slope: x, default=lambda x, slope: slope
    )


def _gelu_backward(kept: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    slope = jax.lax.platform_dependent(
        kept,
        # Without the barrier, the compiler would keep what both passes compute.
        cuda=lambda x: _gelu_and_slope(jax.lax.optimization_barrier(x))[1],
        default=lambda slope: slope,
    )
    return (gradient * slope,)


_gelu_bfloat16.defvjp(_gelu_forward, _gelu_backward)

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    # The first release used the exact form; `gelu_new` is transformers' name
    # for the tanh approximation that google-research/bert changed to later.
    "gelu": gelu,
    "gelu_new": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
    "silu": nn.silu,
    "tanh": jnp.tanh,
}
