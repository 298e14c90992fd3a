"""Attention as GPU kernels, forward and backward, with dropout inside.

No array of L x L exists in memory. A program of the forward kernel handles some queries of one head
and reads the keys block by block, with a running maximum and sum (Milakov and Gimelshein, 2018).
The backward pass computes the probabilities again from the logarithms of these sums (Dao,
"FlashAttention-2", 2023): a program sums the gradients of its block of queries over all keys, and
those of its block of keys over all queries, so every sum has a fixed order.

The kernels are written in Pallas and compiled by Triton. JAX deprecates this way of compiling and
will remove it; see `can_be_lowered`.

Arrays here are [B, L, A*K], as the projections write them.
"""

import functools
import math
import warnings

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.dropout import keeps
from bert_jax.models.fused_attention import (
    ALL_HEADS,
    COLUMNS,
    EACH_HEAD,
    ROWS,
    dot,
    num_head_shards,
    on_each_device,
)

# The number of queries, and of keys, that a program holds at once.
_BLOCK = 64
# Depths of a head: products in Triton need powers of two.
_DEPTHS = (16, 32, 64, 128)
# The shortest rows for which the kernels were measured: see docs/hardware.md.
_MIN_LENGTH = 128
# The logical axes of a value for each key of a row, and for each query of a head, [B, A, L].
_EACH_KEY, _EACH_QUERY = ("batch", None), ("batch", "activation_heads", None)
# The logical axes of the inputs of the kernels. The forward kernel has the first six.
_IN_AXES = [
    ALL_HEADS,
    ALL_HEADS,
    ALL_HEADS,
    _EACH_KEY,
    EACH_HEAD,
    EACH_HEAD,
    ALL_HEADS,
    _EACH_QUERY,
    _EACH_QUERY,
]
_LOWEST = jnp.finfo(jnp.float32).min


def fits(config: BertConfig, length: int) -> bool:
    """Returns whether the kernels support a model's heads, and pay for a sequence length."""
    fits_heads = config.head_depth in _DEPTHS and not config.num_attention_heads % num_head_shards()
    return fits_heads and length % _BLOCK == 0 and length >= _MIN_LENGTH


@functools.cache
def can_be_lowered() -> bool:
    """Returns whether this version of JAX can lower the kernels; warns if not, once a process."""

    def loss(array, mask, key):
        output = fused_attention(array, array, array, mask, (key, key), depth=_DEPTHS[0], rate=0.1)
        return jnp.sum(output.astype(jnp.float32))

    array = jax.ShapeDtypeStruct((1, _BLOCK, _DEPTHS[0]), jnp.bfloat16)
    mask = jax.ShapeDtypeStruct((1, 1, _BLOCK), jnp.float32)
    key = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    try:
        jax.jit(jax.grad(loss)).trace(array, mask, key).lower(lowering_platforms=("cuda",))
    # Any error: an import, a name that moved, or an operation without a rule.
    except Exception as error:
        warnings.warn(
            f"attention is computed without the kernel for GPUs, because JAX {jax.__version__} "
            f"cannot lower it: {str(error).partition(chr(10))[0]}",
            stacklevel=2,
        )
        return False
    return True


def fused_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    mask_keys_BxA: tuple[jax.Array, jax.Array],
    *,
    depth: int,
    rate: float,
    interpret: bool = False,
) -> jax.Array:
    """Returns softmax(query key^T / sqrt(depth) + mask) after dropout, times value.

    The arguments are those of the TPU kernel, `fused_attention.fused_attention`, with these
    differences: `query`, `key` and `value` may have any dtype, L is a multiple of 64, and a mask
    [B, 1, L] is 0 for real keys and very low for padding. Padding sees only padding, so its output,
    which nothing reads, differs from plain attention.
    """
    if mask.ndim == 3:
        numbers_BxL = (mask[:, 0] == 0).astype(jnp.int32)
    else:
        is_after_BxLxP = jnp.arange(query.shape[1])[:, None] >= mask[:, None]
        numbers_BxL = jnp.sum(is_after_BxLxP, axis=-1, dtype=jnp.int32)
    return _attention(depth, rate, interpret, query, key, value, numbers_BxL, *mask_keys_BxA)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attention(depth, rate, interpret, query, key, value, numbers, first, second):
    """Attends to the positions with the same number, int32 [B, L]."""
    return _forward(depth, rate, interpret, query, key, value, numbers, first, second)[0]


def _forward(depth, rate, interpret, *inputs):
    kernel = functools.partial(_forward_kernel, rate=rate)
    output, log_sums = _run(kernel, inputs, depth, interpret, [ALL_HEADS, _EACH_QUERY])
    return output, (*inputs, output, log_sums)


def _backward(depth, rate, interpret, residuals, gradient):
    *inputs, output, log_sums = residuals
    products = gradient.astype(jnp.float32) * output.astype(jnp.float32)
    # The sum of each row of probabilities times their gradients.
    inner = jnp.sum(products.reshape(*output.shape[:2], -1, depth), -1).swapaxes(1, 2)
    kernel = functools.partial(_backward_kernel, rate=rate)
    inputs = *inputs, gradient, log_sums, inner
    gradients = _run(kernel, inputs, depth, interpret, [ALL_HEADS] * 3)
    return *gradients, None, None, None


_attention.defvjp(_forward, _backward)


def _run(kernel, inputs, depth, interpret, out_axes):
    """Calls a kernel for each block of positions of each head, on the sequences of each device.

    A program can read all of its sequence, and writes its block of each output.
    """
    # JAX will remove this module, so only GPUs import it.
    from jax.experimental.pallas import triton

    in_axes = _IN_AXES[: len(inputs)]

    def local(*inputs):
        batch, length, width = inputs[0].shape
        heads = width // depth
        whole = {
            ALL_HEADS: pl.BlockSpec((None, length, depth), lambda b, h, i: (b, 0, h)),
            _EACH_KEY: pl.BlockSpec((None, length), lambda b, h, i: (b, 0)),
            EACH_HEAD: pl.BlockSpec((None, None), lambda b, h, i: (b, h)),
            _EACH_QUERY: pl.BlockSpec((None, None, length), lambda b, h, i: (b, h, 0)),
        }
        block = {
            ALL_HEADS: pl.BlockSpec((None, _BLOCK, depth), lambda b, h, i: (b, i, h)),
            _EACH_QUERY: pl.BlockSpec((None, None, _BLOCK), lambda b, h, i: (b, h, i)),
        }
        shapes = {
            ALL_HEADS: jax.ShapeDtypeStruct(inputs[0].shape, inputs[0].dtype),
            _EACH_QUERY: jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
        }
        return pl.pallas_call(
            kernel,
            grid=(batch, heads, length // _BLOCK),
            in_specs=[whole[axes] for axes in in_axes],
            out_specs=[block[axes] for axes in out_axes],
            out_shape=[shapes[axes] for axes in out_axes],
            # The type of these parameters chooses the compiler.
            compiler_params=triton.CompilerParams(num_warps=4 if depth <= 64 else 8, num_stages=2),
            name=kernel.func.__name__.strip("_"),
            interpret=interpret,
        )(*inputs)

    return on_each_device(local, inputs, in_axes, out_axes)


def _forward_kernel(query, key, value, numbers, first, second, output, log_sum, *, rate):
    length, depth = key.shape
    rows = _block(pl.program_id(2))
    q, own = query[rows], numbers[rows]

    def step(i, carry):
        total, sums, highest = carry
        columns = _block(i)
        scores = _scores(q, key[columns], own, numbers[columns])
        higher = jnp.maximum(highest, jnp.max(scores, axis=1))
        shrink = jnp.exp2(highest - higher)
        probs = jnp.exp2(scores - higher[:, None])
        sums = sums * shrink + jnp.sum(probs, axis=1)
        if rate:
            probs = jnp.where(_kept(first, second, rows, columns, length, rate), probs, 0)
        v = value[columns]
        total = total * shrink[:, None] + dot(probs.astype(v.dtype), v, COLUMNS, ROWS)
        return total, sums, higher

    zeros, zero = jnp.zeros((_BLOCK, depth), jnp.float32), jnp.zeros(_BLOCK, jnp.float32)
    carry = zeros, zero, zero + _LOWEST
    total, sums, highest = jax.lax.fori_loop(0, length // _BLOCK, step, carry)
    output[...] = (total / (sums * (1 - rate))[:, None]).astype(output.dtype)
    log_sum[...] = highest + jnp.log2(sums)


def _backward_kernel(
    query, key, value, numbers, first, second, gradient, log_sum, inner, *outputs, rate
):
    d_query, d_key, d_value = outputs
    length, depth = key.shape
    scale, here = depth**-0.5, _block(pl.program_id(2))

    def of_queries(rows):
        return rows, query[rows], gradient[rows], log_sum[rows], inner[rows], numbers[rows]

    def of_keys(columns):
        return columns, key[columns], value[columns], numbers[columns]

    def probs_and_gradient(of_queries, of_keys):
        """Returns the probabilities after dropout and the gradient of the scores, not scaled."""
        (rows, q, g, log_sums, inners, own), (columns, k, v, others) = of_queries, of_keys
        dropped = probs = jnp.exp2(_scores(q, k, own, others) - log_sums[:, None])
        d_probs = dot(g, v, COLUMNS, COLUMNS)
        if rate:
            kept = _kept(first, second, rows, columns, length, rate)
            dropped, d_probs = jnp.where(kept, probs, 0), jnp.where(kept, d_probs, 0)
        d_scores = probs * (d_probs * (1 / (1 - rate)) - inners[:, None])
        return dropped.astype(v.dtype), d_scores.astype(q.dtype)

    keys_here, queries_here = of_keys(here), of_queries(here)

    def add_queries(i, carry):
        dk, dv = carry
        queries = _, q, g, *_ = of_queries(_block(i))
        dropped, d_scores = probs_and_gradient(queries, keys_here)
        return dk + dot(d_scores, q, ROWS, ROWS), dv + dot(dropped, g, ROWS, ROWS)

    def add_keys(i, dq):
        keys = _, k, *_ = of_keys(_block(i))
        _, d_scores = probs_and_gradient(queries_here, keys)
        return dq + dot(d_scores, k, COLUMNS, ROWS)

    zeros, num_blocks = jnp.zeros((_BLOCK, depth), jnp.float32), length // _BLOCK
    dk, dv = jax.lax.fori_loop(0, num_blocks, add_queries, (zeros, zeros))
    d_key[...] = (dk * scale).astype(d_key.dtype)
    d_value[...] = (dv * (1 / (1 - rate))).astype(d_value.dtype)
    dq = jax.lax.fori_loop(0, num_blocks, add_keys, zeros)
    d_query[...] = (dq * scale).astype(d_query.dtype)


def _block(number: jax.Array) -> pl.Slice:
    return pl.ds(number * _BLOCK, _BLOCK)


def _scores(q: jax.Array, k: jax.Array, own: jax.Array, others: jax.Array) -> jax.Array:
    """Returns scores whose powers of two, not of e, are the exponentials of softmax."""
    scores = dot(q, k, COLUMNS, COLUMNS) * (q.shape[-1] ** -0.5 * math.log2(math.e))
    return jnp.where(own[:, None] == others[None, :], scores, _LOWEST)


def _kept(first, second, rows: pl.Slice, columns: pl.Slice, length: int, rate: float) -> jax.Array:
    """Returns which probabilities of a block are kept: the same as in plain attention."""
    row = rows.start + jax.lax.broadcasted_iota(jnp.int32, (_BLOCK, _BLOCK), 0)
    column = columns.start + jax.lax.broadcasted_iota(jnp.int32, (_BLOCK, _BLOCK), 1)
    return keeps(row * length + column, (first[...], second[...]), rate)
