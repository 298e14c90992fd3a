"""Attention as GPU kernels, forward and backward, with dropout inside.

No array of L x L exists in memory. A program of the forward kernel handles some queries of one head
and reads the keys block by block, with a running maximum and sum (Milakov and Gimelshein, 2018).
The backward pass computes the probabilities again from the logarithms of these sums (Dao,
"FlashAttention-2", 2023): the gradients of a block of queries are summed over all keys, and those
of a block of keys over all queries, so every sum has a fixed order.

The kernels are written in Pallas and compiled by Triton. JAX deprecates this way of compiling and
will remove it; see `can_be_lowered`.

Arrays here are [B, L, A*K], as the projections write them.
"""

import functools
import math
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.dropout import keeps
from bert_jax.models.on_devices import ALL_HEADS, EACH_HEAD, num_head_shards, on_each_device
from bert_jax.models.tpu_attention import COLUMNS, ROWS, dot


class Tiling(NamedTuple):
    """How a kernel divides the positions of a row, and how Triton compiles it.

    Attributes:
      own: The number of positions whose outputs a program computes.
      other: The number of positions that it reads at a time: keys if its own are queries.
      warps: The groups of 32 threads that run a program.
      stages: The blocks of `other` that Triton loads ahead, plus one.
    """

    own: int
    other: int
    warps: int
    stages: int


class Form(NamedTuple):
    """The kernels for one kind of rows.

    Attributes:
      forward: The tiling of the forward kernel.
      keys: The tiling of the kernel for the gradients of keys and values.
      queries: The tiling of the kernel for the gradients of queries. If None, the form is the one
        that was measured: the programs of `keys` compute these gradients too, all programs read
        all blocks unless the layer has a window, and programs of one head do not start together.
    """

    forward: Tiling
    keys: Tiling
    queries: Tiling | None = None

    @property
    def is_measured(self) -> bool:
        return self.queries is None


class Call(NamedTuple):
    """The constants of a call; see `fused_attention`."""

    depth: int
    rate: float
    window: int | None
    form: Form
    interpret: bool


# Whether to use the second form, which was never run on a GPU.
_USES_SECOND_FORM = False
# For which depths of a head, lengths of a row and layers a form is: the largest depth, the smallest
# length, and whether the layers have a window or not (None: both). The first row that fits is used.
_MEASURED = [
    (64, 0, None, Form(Tiling(64, 64, 4, 2), Tiling(64, 64, 4, 2))),
    (128, 0, None, Form(Tiling(64, 64, 8, 2), Tiling(64, 64, 8, 2))),
]
# Chosen without a GPU, by the registers and instructions of Triton's programs for an H100. With a
# window of 64 on each side, 64 queries read 192 keys, and 128 queries read 256.
# benchmarks/gpu_attention.py prints rows to put before these.
_SECOND = [
    (64, 0, True, Form(Tiling(64, 64, 4, 2), Tiling(64, 64, 4, 2), Tiling(64, 64, 4, 2))),
    (64, 0, None, Form(Tiling(128, 64, 8, 3), Tiling(128, 64, 8, 2), Tiling(128, 64, 8, 2))),
    (128, 0, None, Form(Tiling(128, 64, 8, 2), Tiling(64, 64, 4, 2), Tiling(64, 64, 4, 2))),
]
# Blocks divide the lengths of rows, which are multiples of this number.
_MULTIPLE = 64
# Depths of a head: products in Triton need powers of two.
_DEPTHS = (16, 32, 64, 128)
# The shortest rows for which the kernels were measured: see docs/hardware.md.
_MIN_LENGTH = 128
# The logical axes of a value for each key of a row, of one for each query of a head, [B, A, L], and
# of two for each query, [B, A, 2, L].
_EACH_KEY, _EACH_QUERY = ("batch", None), ("batch", "activation_heads", None)
_TWO_EACH_QUERY = (*_EACH_QUERY, None)
# The logical axes of the inputs of the kernels. The forward kernel has the first six.
_IN_AXES = [ALL_HEADS] * 3 + [_EACH_KEY, EACH_HEAD, EACH_HEAD, ALL_HEADS, _TWO_EACH_QUERY]
_LOWEST = jnp.finfo(jnp.float32).min


def fits(config: BertConfig, length: int) -> bool:
    """Returns whether the kernels support a model's heads, and pay for a sequence length."""
    fits_heads = config.head_depth in _DEPTHS and not config.num_attention_heads % num_head_shards()
    return fits_heads and length % _MULTIPLE == 0 and length >= _MIN_LENGTH


@functools.cache
def can_be_lowered() -> bool:
    """Returns whether this version of JAX can lower the kernels; warns if not, once a process."""

    def loss(array, mask, key):
        output = fused_attention(array, array, array, mask, (key, key), depth=_DEPTHS[0], rate=0.1)
        return jnp.sum(output.astype(jnp.float32))

    array = jax.ShapeDtypeStruct((1, _MULTIPLE, _DEPTHS[0]), jnp.bfloat16)
    mask = jax.ShapeDtypeStruct((1, _MULTIPLE), jnp.int32)
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
    window: int | None = None,
    form: Form | None = None,
    interpret: bool = False,
) -> jax.Array:
    """Returns softmax(query key^T / sqrt(depth) + mask) after dropout, times value.

    The arguments are those of the TPU kernel, `tpu_attention.fused_attention`, with these
    differences. `query`, `key` and `value` may have any dtype, and L is a multiple of 64. Padding
    sees nothing: its output, which nothing reads, differs from plain attention, and it passes no
    gradients on.

    Args:
      mask: int32 [B, L], the number of its sequence at each token, 0 at padding. A position attends
        only to positions with its own number. Or [B, 1, L], 0 for real keys and very low for
        padding.
      window: If not None, position i attends only to positions j with |i - j| <= window.
      form: The kernels, if not those that `find_form` returns.
    """
    numbers_BxL = (mask if mask.ndim == 2 else mask[:, 0] == 0).astype(jnp.int32)
    form = form or find_form(depth, query.shape[1], window)
    call = Call(depth, rate, window, form, interpret)
    return _attention(call, query, key, value, numbers_BxL, *mask_keys_BxA)


def find_form(depth: int, length: int, window: int | None) -> Form:
    """Returns the kernels for rows of some length."""
    table = _SECOND if _USES_SECOND_FORM else _MEASURED
    return next(
        form
        for largest_depth, smallest_length, is_local, form in table
        if depth <= largest_depth
        and length >= smallest_length
        and is_local in (None, window is not None)
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(call, query, key, value, numbers, first, second):
    return _forward(call, query, key, value, numbers, first, second)[0]


def _forward(call, *inputs):
    output, log_sums = forward(call, inputs)
    return output, (*inputs, output, log_sums)


def _backward(call, residuals, gradient):
    *inputs, output, log_sums = residuals
    inputs = *inputs, gradient, with_inner_sums(log_sums, output, gradient)
    if call.form.is_measured:
        tiling, out_axes = call.form.keys, [ALL_HEADS] * 3
        d_query, d_key, d_value = _run(_backward_kernel, call, tiling, inputs, out_axes)
    else:
        d_query, (d_key, d_value) = query_gradient(call, inputs), key_gradients(call, inputs)
    return d_query, d_key, d_value, None, None, None


_attention.defvjp(_forward, _backward)


def with_inner_sums(log_sums: jax.Array, output: jax.Array, gradient: jax.Array) -> jax.Array:
    """Returns the two numbers that the backward pass has for each query, [B, A, 2, L].

    The second is the sum over a row of probabilities times their gradients.
    """
    products = gradient.astype(jnp.float32) * output.astype(jnp.float32)
    heads = log_sums.shape[1]
    inner = jnp.sum(products.reshape(*output.shape[:2], heads, -1), -1).swapaxes(1, 2)
    return jnp.stack([log_sums, inner], axis=2)


# Each of these functions runs one kernel, whose inputs are those of `_attention`, and in the
# backward pass also the gradient of the output and `with_inner_sums`.


def forward(call: Call, inputs) -> list[jax.Array]:
    """Returns the output and, for each query, the logarithm of its sum of exponentials."""
    return _run(_forward_kernel, call, call.form.forward, inputs, [ALL_HEADS, _EACH_QUERY])


def key_gradients(call: Call, inputs) -> list[jax.Array]:
    return _run(_key_backward_kernel, call, call.form.keys, inputs, [ALL_HEADS] * 2)


def query_gradient(call: Call, inputs) -> jax.Array:
    return _run(_query_backward_kernel, call, call.form.queries, inputs, [ALL_HEADS])[0]


def _run(kernel, call, tiling, inputs, out_axes):
    """Calls a kernel for each block of positions of each head, on the sequences of each device.

    A program can read all of its sequence, and writes its block of each output.
    """
    # JAX will remove this module, so only GPUs import it.
    from jax.experimental.pallas import triton

    in_axes, is_measured = _IN_AXES[: len(inputs)], call.form.is_measured

    def local(*inputs):
        (batch, length, width), numbers_BxL = inputs[0].shape, inputs[3]
        heads, depth = width // call.depth, call.depth
        own, other = math.gcd(tiling.own, length), math.gcd(tiling.other, length)
        # In the second form, the programs of one head start together.
        axis, grid = 0, (length // own, heads, batch)
        if is_measured:
            axis, grid = 2, (batch, heads, length // own)

        def spec(shape, index):
            """`index` is a function of sequence, head and block."""
            return pl.BlockSpec(shape, index if is_measured else lambda i, h, b: index(b, h, i))

        whole = {
            ALL_HEADS: spec((None, length, depth), lambda b, h, i: (b, 0, h)),
            _EACH_KEY: spec((None, length), lambda b, h, i: (b, 0)),
            EACH_HEAD: spec((None, None), lambda b, h, i: (b, h)),
            _TWO_EACH_QUERY: spec((None, None, 2, length), lambda b, h, i: (b, h, 0, 0)),
        }
        block = {
            ALL_HEADS: spec((None, own, depth), lambda b, h, i: (b, i, h)),
            _EACH_QUERY: spec((None, None, own), lambda b, h, i: (b, h, i)),
        }
        shapes = {
            ALL_HEADS: jax.ShapeDtypeStruct(inputs[0].shape, inputs[0].dtype),
            _EACH_QUERY: jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
        }
        seen = seen_spec = None
        if not is_measured or call.window is not None:
            seen = blocks_seen(numbers_BxL, call.window, own, other)
            seen_spec = spec((None, None, 2), lambda b, h, i: (b, i, 0))
        return pl.pallas_call(
            functools.partial(
                kernel, axis=axis, own=own, other=other, window=call.window, rate=call.rate
            ),
            grid=grid,
            in_specs=[seen_spec, *(whole[axes] for axes in in_axes)],
            out_specs=[block[axes] for axes in out_axes],
            out_shape=[shapes[axes] for axes in out_axes],
            # The type of these parameters chooses the compiler.
            compiler_params=triton.CompilerParams(num_warps=tiling.warps, num_stages=tiling.stages),
            name=kernel.__name__.strip("_"),
            interpret=call.interpret,
        )(seen, *inputs)

    return on_each_device(local, inputs, in_axes, out_axes)


def blocks_seen(numbers_BxL: jax.Array, window: int | None, own: int, other: int) -> jax.Array:
    """Returns the blocks of `other` positions that each block of `own` positions may see.

    These are all blocks from a first to a last one, in which some have sequences in common, and are
    not too far away. The number of a sequence may be at several places of a row.

    Returns:
      int32 [B, L / own, 2], the number of the first block and that after the last one.
    """
    batch, length = numbers_BxL.shape
    num_own, num_other = length // own, length // other
    largest = jnp.iinfo(jnp.int32).max

    def lowest_and_highest(size):
        """Leaves out padding: the lowest number of a block of it is above the highest."""
        numbers_BxNxS = numbers_BxL.reshape(batch, -1, size)
        lowest_BxN = jnp.min(jnp.where(numbers_BxNxS > 0, numbers_BxNxS, largest), axis=-1)
        return lowest_BxN, jnp.max(numbers_BxNxS, axis=-1)

    lowest_BxI, highest_BxI = lowest_and_highest(own)
    lowest_BxJ, highest_BxJ = lowest_and_highest(other)
    is_seen_BxIxJ = lowest_BxI[:, :, None] <= highest_BxJ[:, None]
    is_seen_BxIxJ &= lowest_BxJ[:, None] <= highest_BxI[:, :, None]
    number_J = jnp.arange(num_other, dtype=jnp.int32)
    if window is not None:
        start_Ix1, start_J = jnp.arange(num_own)[:, None] * own, number_J * other
        is_seen_BxIxJ &= start_J + other - 1 >= start_Ix1 - window
        is_seen_BxIxJ &= start_Ix1 + own - 1 >= start_J - window
    first_BxI = jnp.min(jnp.where(is_seen_BxIxJ, number_J, num_other), axis=-1)
    end_BxI = jnp.max(jnp.where(is_seen_BxIxJ, number_J + 1, 0), axis=-1)
    return jnp.stack([first_BxI, end_BxI], axis=-1)


class _Inputs(NamedTuple):
    """The inputs of the kernels; the last two are those of the backward pass.

    These are references to what a program can read: the two numbers of its block (`blocks_seen`);
    [L, K] of its sequence and head; `numbers`, [L]; the keys of dropout, `first` and `second`; and
    `sums`, [2, L] (`with_inner_sums`).
    """

    seen: jax.Array | None
    query: jax.Array
    key: jax.Array
    value: jax.Array
    numbers: jax.Array
    first: jax.Array
    second: jax.Array
    gradient: jax.Array | None = None
    sums: jax.Array | None = None


def _forward_kernel(*refs, axis, own, other, window, rate):
    *inputs, output, log_sum = refs
    inputs = _Inputs(*inputs)
    rows = _block(pl.program_id(axis), own)
    q, own_numbers = inputs.query[rows], _query_numbers(inputs, rows)

    def step(i, carry):
        total, sums, highest = carry
        columns, k, v, numbers = _load_keys(inputs, _block(i, other))
        scores = _scores(q, k, _is_seen(rows, columns, own_numbers, numbers, 0, window), 0)
        higher = jnp.maximum(highest, jnp.max(scores, axis=1))
        shrink = jnp.exp2(highest - higher)
        probs = jnp.exp2(scores - higher[:, None])
        sums = sums * shrink + jnp.sum(probs, axis=1)
        if rate:
            probs = jnp.where(_kept(inputs, rows, columns, 0, rate), probs, 0)
        total = total * shrink[:, None] + dot(probs.astype(v.dtype), v, COLUMNS, ROWS)
        return total, sums, higher

    zeros, zero = jnp.zeros(q.shape, jnp.float32), jnp.zeros(own, jnp.float32)
    carry = zeros, zero, zero + _LOWEST
    total, sums, highest = jax.lax.fori_loop(*_bounds(inputs, other), step, carry)
    # The largest of the exponentials is 1. A smaller sum is that of no block.
    sums = jnp.maximum(sums, 1)
    output[...] = (total / (sums * (1 - rate))[:, None]).astype(output.dtype)
    # The backward pass then finds probabilities of 0 where a query saw nothing.
    log_sum[...] = jnp.where(highest > _LOWEST, highest + jnp.log2(sums), -_LOWEST)


def _backward_kernel(*refs, **constants):
    """Computes the gradients of a block of positions: as keys, then as queries."""
    *inputs, d_query, d_key, d_value = refs
    _key_backward_kernel(*inputs, d_key, d_value, query_axis=0, **constants)
    _query_backward_kernel(*inputs, d_query, **constants)


def _key_backward_kernel(*refs, axis, own, other, window, rate, query_axis=1):
    """Computes the gradients of a block of keys and values.

    If the queries have the second axis of a block of scores, the products with it need not move it
    between the threads of a program.
    """
    *inputs, d_key, d_value = refs
    inputs = _Inputs(*inputs)
    depth = inputs.key.shape[1]
    keys = _load_keys(inputs, _block(pl.program_id(axis), own))

    def step(i, carry):
        dk, dv = carry
        queries = _load_queries(inputs, _block(i, other))
        _, q, g, *_ = queries
        dropped, d_scores = _probs_and_gradient(inputs, queries, keys, query_axis, window, rate)
        dk += dot(d_scores, q, (query_axis,), ROWS)
        return dk, dv + dot(dropped, g, (query_axis,), ROWS)

    zeros = jnp.zeros((own, depth), jnp.float32)
    dk, dv = jax.lax.fori_loop(*_bounds(inputs, other), step, (zeros, zeros))
    d_key[...] = (dk * depth**-0.5).astype(d_key.dtype)
    d_value[...] = (dv * (1 / (1 - rate))).astype(d_value.dtype)


def _query_backward_kernel(*refs, axis, own, other, window, rate):
    *inputs, d_query = refs
    inputs = _Inputs(*inputs)
    depth = inputs.key.shape[1]
    queries = _load_queries(inputs, _block(pl.program_id(axis), own))

    def step(i, dq):
        keys = _load_keys(inputs, _block(i, other))
        _, k, *_ = keys
        _, d_scores = _probs_and_gradient(inputs, queries, keys, 0, window, rate)
        return dq + dot(d_scores, k, COLUMNS, ROWS)

    zeros = jnp.zeros((own, depth), jnp.float32)
    dq = jax.lax.fori_loop(*_bounds(inputs, other), step, zeros)
    d_query[...] = (dq * depth**-0.5).astype(d_query.dtype)


def _load_queries(inputs: _Inputs, rows: pl.Slice):
    query, gradient, sums = inputs.query, inputs.gradient, inputs.sums
    numbers = _query_numbers(inputs, rows)
    return rows, query[rows], gradient[rows], sums[0, rows], sums[1, rows], numbers


def _load_keys(inputs: _Inputs, columns: pl.Slice):
    return columns, inputs.key[columns], inputs.value[columns], inputs.numbers[columns]


def _probs_and_gradient(inputs: _Inputs, queries, keys, query_axis, window, rate):
    """Returns the probabilities after dropout and the gradient of the scores, not scaled."""
    (rows, q, g, log_sums, inners, own_numbers), (columns, k, v, numbers) = queries, keys
    is_seen = _is_seen(rows, columns, own_numbers, numbers, query_axis, window)
    log_sums, inners = (jnp.expand_dims(x, 1 - query_axis) for x in (log_sums, inners))
    dropped = probs = jnp.exp2(_scores(q, k, is_seen, query_axis) - log_sums)
    d_probs = _product(g, v, query_axis)
    if rate:
        kept = _kept(inputs, rows, columns, query_axis, rate)
        dropped, d_probs = jnp.where(kept, probs, 0), jnp.where(kept, d_probs, 0)
    d_scores = probs * (d_probs * (1 / (1 - rate)) - inners)
    return dropped.astype(v.dtype), d_scores.astype(q.dtype)


def _query_numbers(inputs: _Inputs, rows: pl.Slice) -> jax.Array:
    """Returns the numbers of queries. That of padding is not the one of padding among the keys."""
    numbers = inputs.numbers[rows]
    return jnp.where(numbers == 0, -1, numbers)


def _block(number: jax.Array, size: int) -> pl.Slice:
    return pl.ds(number * size, size)


def _bounds(inputs: _Inputs, other: int):
    """Returns the first block that a program reads, and that after the last one."""
    if inputs.seen is None:
        return 0, inputs.key.shape[0] // other
    return inputs.seen[0], inputs.seen[1]


# In what follows, queries have the axis `query_axis` of a block of scores, and keys the other.


def _is_seen(rows, columns, own_numbers, numbers, query_axis: int, window: int | None) -> jax.Array:
    is_seen = jnp.expand_dims(own_numbers, 1 - query_axis) == jnp.expand_dims(numbers, query_axis)
    if window is not None:
        row, column = _positions(rows, columns, query_axis)
        is_seen &= jnp.abs(row - column) <= window
    return is_seen


def _scores(q: jax.Array, k: jax.Array, is_seen: jax.Array, query_axis: int) -> jax.Array:
    """Returns scores whose powers of two, not of e, are the exponentials of softmax."""
    scores = _product(q, k, query_axis) * (q.shape[-1] ** -0.5 * math.log2(math.e))
    return jnp.where(is_seen, scores, _LOWEST)


def _kept(inputs: _Inputs, rows, columns, query_axis: int, rate: float) -> jax.Array:
    """Returns which probabilities of a block are kept: the same as in plain attention."""
    row, column = _positions(rows, columns, query_axis)
    index = row * inputs.key.shape[0] + column
    return keeps(index, (inputs.first[...], inputs.second[...]), rate)


def _product(of_queries: jax.Array, of_keys: jax.Array, query_axis: int) -> jax.Array:
    factors = (of_keys, of_queries) if query_axis else (of_queries, of_keys)
    return dot(*factors, COLUMNS, COLUMNS)


def _positions(rows: pl.Slice, columns: pl.Slice, query_axis: int) -> tuple[jax.Array, jax.Array]:
    """Returns the query and the key of each element of a block of scores."""
    shape = (columns.size, rows.size) if query_axis else (rows.size, columns.size)
    row = rows.start + jax.lax.broadcasted_iota(jnp.int32, shape, query_axis)
    return row, columns.start + jax.lax.broadcasted_iota(jnp.int32, shape, 1 - query_axis)
