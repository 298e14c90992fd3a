"""Attention as one TPU kernel, forward and backward, with dropout inside.

Scores and probabilities never leave the chip. The backward pass keeps only what the projections
keep anyway and computes the probabilities again. A block of the kernel is 128 lanes wide and
contains all heads that lie side by side in these lanes (two of depth 64). Masks, not slices,
separate the heads, because the matrix unit is 128 wide either way.

Arrays here are [B, L, A*K], as the projections write them, or [3, B, L, A*K] if one product writes
queries, keys and values.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.dropout import keeps
from bert_jax.models.on_devices import ALL_HEADS, EACH_HEAD, num_head_shards, on_each_device

LANES = 128
# The L x L scores of a head must fit in on-chip memory.
MAX_LENGTH = 512
# The limit of on-chip memory.
_VMEM_BYTES = 16 * 2**20
# Positions per step of the kernel, from one or several sequences.
_POSITIONS_A_STEP = 1024

# The axes that a product contracts.
ROWS, COLUMNS = (0,), (1,)


def fits(config: BertConfig, length: int) -> bool:
    """Returns whether the kernel supports a sequence length and the heads on each device."""
    heads, rest = divmod(config.num_attention_heads, num_head_shards())
    fills_lanes = LANES % config.head_depth == 0 and heads * config.head_depth % LANES == 0
    return not rest and fills_lanes and length % LANES == 0 and length <= MAX_LENGTH


def fused_attention(
    heads: tuple[jax.Array, ...],
    mask: jax.Array,
    mask_keys_BxA: tuple[jax.Array, jax.Array],
    *,
    depth: int,
    rate: float,
    interpret: bool = False,
) -> jax.Array:
    """Returns softmax(query key^T / sqrt(depth) + mask) after dropout, times value.

    Args:
      heads: The queries, keys and values, each bfloat16 [B, L, A*K], for which `fits` is true; or
        one array [3, B, L, A*K] of all of them.
      mask: float32 [B, 1, L], added to the scores of each key; or int32 [B, P], the position after
        each sequence of a row, in order. A position then attends only to its own sequence, and
        those after the last sequence attend to each other.
      mask_keys_BxA: From `dropout.mask_keys`; not read if `rate` is 0.
      depth: K.
      rate: The dropout rate of the probabilities.
      interpret: Runs the kernel as plain JAX on any device, for tests.

    Returns:
      [B, L, A*K] bfloat16.
    """
    return _attention(depth, rate, interpret, heads, mask, *mask_keys_BxA)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attention(depth, rate, interpret, heads, mask, first, second):
    return _forward(depth, rate, interpret, heads, mask, first, second)[0]


def _forward(depth, rate, interpret, *inputs):
    kernel = functools.partial(_forward_kernel, depth=depth, rate=rate)
    (output,) = _run(kernel, inputs, [ALL_HEADS], depth, interpret, num_products=2)
    return output, inputs


def _backward(depth, rate, interpret, inputs, gradient):
    kernel = functools.partial(_backward_kernel, depth=depth, rate=rate)
    axes = _axes_of_heads(inputs[0])
    gradients = _run(kernel, (*inputs, gradient), axes, depth, interpret, num_products=5)
    return tuple(gradients), None, None, None


_attention.defvjp(_forward, _backward)


def _axes_of_heads(heads: tuple[jax.Array, ...]) -> list[tuple[str | None, ...]]:
    return [(None,) * (x.ndim - 3) + ALL_HEADS for x in heads]


def _run(kernel, inputs, out_axes, depth, interpret, *, num_products):
    """Calls a kernel on the sequences and heads of each device; returns its outputs."""
    heads, mask, *rest = inputs
    num_arrays = len(heads)

    def local(*inputs):
        heads, (mask, first, second, *gradient) = inputs[:num_arrays], inputs[num_arrays:]
        *_, batch, length, width = heads[0].shape
        rows = math.gcd(batch, max(1, _POSITIONS_A_STEP // length))
        # On-chip memory for scalars is small: a step gets the keys of its own sequences only.
        first, second = (keys.reshape(batch // rows, rows, -1) for keys in (first, second))
        keys_shape = (1, rows, first.shape[-1])
        scalars = pl.BlockSpec(keys_shape, lambda i, j: (i, 0, 0), memory_space=pltpu.SMEM)
        mask_block = pl.BlockSpec((rows, 1, length), lambda i, j: (i, 0, 0))
        if mask.ndim == 2:
            mask = mask.reshape(batch // rows, rows, -1)
            mask_block = pl.BlockSpec(
                (1, *mask.shape[1:]), lambda i, j: (i, 0, 0), memory_space=pltpu.SMEM
            )
        arrays = [*heads, *gradient]
        shapes = [x.shape for x in heads] if gradient else [(batch, length, width)]
        outputs = [jax.ShapeDtypeStruct(shape, heads[0].dtype) for shape in shapes]
        scores = batch * (width // depth) * length * length
        num_values = sum(math.prod(x.shape) for x in (*arrays, *outputs))
        return pl.pallas_call(
            kernel,
            grid=(batch // rows, width // LANES),
            in_specs=[scalars, scalars, mask_block, *(_block(x, rows) for x in arrays)],
            out_specs=[_block(x, rows) for x in outputs],
            out_shape=outputs,
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=_VMEM_BYTES
            ),
            # The time of the matrix unit: each product is at least LANES deep or wide.
            cost_estimate=pl.CostEstimate(
                flops=num_products * 2 * scores * LANES,
                transcendentals=scores,
                bytes_accessed=num_values * heads[0].dtype.itemsize,
            ),
            name=kernel.func.__name__.strip("_"),
            interpret=interpret,
        )(first, second, mask, *arrays)

    mask_axes = ("batch",) + (None,) * (mask.ndim - 1)
    axes = [mask_axes, EACH_HEAD, EACH_HEAD, ALL_HEADS][: 1 + len(rest)]
    axes = [*_axes_of_heads(heads), *axes]
    return on_each_device(local, (*heads, mask, *rest), axes, out_axes)


def _block(array: jax.Array | jax.ShapeDtypeStruct, rows: int) -> pl.BlockSpec:
    """Returns the part of an array that a step of the kernel reads or writes."""
    *others, _, length, _ = array.shape
    shape = (*others, rows, length, LANES)
    return pl.BlockSpec(shape, lambda i, j: (*(0 for _ in others), i, 0, j))


def _apart(references):
    """Returns the references to queries, keys and values, or to their gradients."""
    return [references[0].at[n] for n in range(3)] if len(references) == 1 else references


def _forward_kernel(first, second, mask, *references, depth, rate):
    *inputs, output = references
    query, key, value = _apart(inputs)
    rows, length, _ = query.shape
    heads = _heads(depth)

    @pl.loop(0, rows)
    def one_sequence(i):
        q, k, v = _scaled(query[i], depth), key[i], value[i]
        apart = _sequences_apart(mask, i, length) if mask.dtype == jnp.int32 else None
        total = jnp.zeros(q.shape, jnp.float32)
        for head, lanes in heads:
            probs = _probs(_only(lanes, q), k, mask[i] if apart is None else apart)
            if rate:
                keys = first[0, i, head], second[0, i, head]
                probs = jnp.where(_kept(keys, length, rate), probs, 0)
            total += dot(probs.astype(v.dtype), _only(lanes, v), COLUMNS, ROWS)
        output[i] = (total * (1 / (1 - rate))).astype(output.dtype)


def _backward_kernel(first, second, mask, *references, depth, rate):
    num_arrays = len(references) // 2
    query, key, value = _apart(references[:num_arrays])
    gradient = references[num_arrays]
    d_query, d_key, d_value = _apart(references[num_arrays + 1 :])
    rows, length, _ = query.shape
    heads = _heads(depth)

    @pl.loop(0, rows)
    def one_sequence(i):
        q, k, v = _scaled(query[i], depth), key[i], value[i]
        apart = _sequences_apart(mask, i, length) if mask.dtype == jnp.int32 else None
        g = (gradient[i].astype(jnp.float32) * (1 / (1 - rate))).astype(v.dtype)
        dq = dk = dv = jnp.zeros(q.shape, jnp.float32)
        for head, lanes in heads:
            q_head, k_head, g_head = (_only(lanes, x) for x in (q, k, g))
            probs = _probs(q_head, k, mask[i] if apart is None else apart)
            d_probs = dot(g_head, v, COLUMNS, COLUMNS)
            dropped = probs
            if rate:
                keys = first[0, i, head], second[0, i, head]
                kept = _kept(keys, length, rate)
                dropped = jnp.where(kept, probs, 0)
                d_probs = jnp.where(kept, d_probs, 0)
            inner = jnp.sum(d_probs * probs, axis=-1, keepdims=True)
            d_scores = (probs * (d_probs - inner)).astype(q.dtype)
            dq += dot(d_scores, k_head, COLUMNS, ROWS)
            dk += dot(d_scores, q_head, ROWS, ROWS)
            dv += dot(dropped.astype(v.dtype), g_head, ROWS, ROWS)
        d_query[i] = (dq * depth**-0.5).astype(d_query.dtype)
        d_key[i] = dk.astype(d_key.dtype)
        d_value[i] = dv.astype(d_value.dtype)


def _scaled(query: jax.Array, depth: int) -> jax.Array:
    return query * jnp.asarray(depth**-0.5, query.dtype)


def _heads(depth: int) -> list[tuple[jax.Array, tuple[int, int]]]:
    """Returns each head of a block: its number on this device and its range of lanes."""
    group = LANES // depth
    first = pl.program_id(1) * group
    return [(first + h, (h * depth, (h + 1) * depth)) for h in range(group)]


def _only(lanes: tuple[int, int], x: jax.Array) -> jax.Array:
    """Returns x with zeros outside the given lanes."""
    lane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    return jnp.where((lane >= lanes[0]) & (lane < lanes[1]), x, 0)


def _sequences_apart(ends: jax.Array, i: jax.Array, length: int) -> jax.Array:
    """Returns the bias [L, L] that keeps the sequences of row i apart."""

    def number(shape: tuple[int, int], axis: int) -> jax.Array:
        """Counts the sequences that end at or before each position."""
        position = jax.lax.broadcasted_iota(jnp.int32, shape, axis)
        ends_P = [ends[0, i, p] for p in range(ends.shape[-1])]
        return sum(jnp.where(position >= end, 1, 0) for end in ends_P)

    is_same_LxL = number((length, 1), 0) == number((1, length), 1)
    return jnp.where(is_same_LxL, 0.0, jnp.finfo(jnp.float32).min)


def _probs(q: jax.Array, k: jax.Array, bias: jax.Array) -> jax.Array:
    scores = dot(q, k, COLUMNS, COLUMNS) + bias
    exponentials = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return exponentials * (1 / jnp.sum(exponentials, axis=-1, keepdims=True))


def _kept(keys: tuple[jax.Array, jax.Array], length: int, rate: float) -> jax.Array:
    row = jax.lax.broadcasted_iota(jnp.int32, (length, length), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (length, length), 1)
    return keeps(row * length + column, keys, rate)


def dot(a, b, a_axes, b_axes):
    """Returns the product that sums over an axis of each matrix, in float32."""
    return jax.lax.dot_general(
        a, b, ((a_axes, b_axes), ((), ())), preferred_element_type=jnp.float32
    )
