"""The attention kernels of TPUs and GPUs, run as plain JAX, against a plain implementation."""

import dataclasses
import functools
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import BertConfig, gpu_attention, tpu_attention
from bert_jax.models.attention import AttentionMask, SelfAttention, attention_bias, sequence_ends
from bert_jax.models.dropout import keeps, mask_keys
from tests.small import ones_in_norms, randomized

RATE = 0.1
OTHER_HEADS = {"num_key_value_heads": 2, "rope_theta": 50.0, "rope_scale": 1.5, "qk_norm": True}


def make_case(depth, heads, length, dtype):
    """Returns projections, the last of them weights of the output; one sequence ends in padding."""
    generator = np.random.default_rng(0)
    arrays = [
        jnp.asarray(generator.normal(size=(2, length, heads * depth)), dtype) for _ in range(4)
    ]
    bias = np.zeros((2, 1, length), np.float32)
    bias[1, :, length - 40 :] = np.finfo(np.float32).min
    # Nothing reads the output at padding, which differs from that of plain attention.
    arrays[3] *= jnp.asarray(bias[:, 0, :, None] == 0, dtype)
    return arrays, jnp.asarray(bias), mask_keys(jax.random.key(7), (2, heads))


def written_out(depth, query, key, value, bias, keys, rate):
    """A plain implementation in float32; returns [B, L, A*K]."""

    def split(x):
        return x.astype(jnp.float32).reshape(*x.shape[:2], -1, depth)

    scores = jnp.einsum("BQAK,BLAK->BAQL", split(query) * depth**-0.5, split(key))
    probs = jax.nn.softmax(scores + bias[:, None])
    if rate:
        length = query.shape[1]
        index = jnp.arange(length * length, dtype=jnp.int32).reshape(length, length)
        kept = keeps(index, tuple(key[..., None, None] for key in keys), rate)
        probs = jnp.where(kept, probs / (1 - rate), 0)
    return jnp.einsum("BAQL,BLAK->BQAK", probs, split(value)).reshape(query.shape)


def relative(found, expected):
    """Returns the largest difference relative to the largest value."""
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    return np.abs(found - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize(
    ("kernels", "depth", "heads", "length", "dtype", "rate"),
    [
        (tpu_attention, 32, 4, 128, "bfloat16", RATE),
        (gpu_attention, 32, 2, 128, "float32", RATE),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (tpu_attention, 32, 4, 128, "bfloat16", 0.0),
                (tpu_attention, 64, 4, 128, "bfloat16", RATE),
                (tpu_attention, 64, 4, 128, "bfloat16", 0.0),
                (gpu_attention, 64, 2, 512, "bfloat16", RATE),
                (gpu_attention, 128, 1, 256, "float32", 0.0),
            ]
        ),
    ],
)
def test_output_and_gradients_match_plain_attention(kernels, depth, heads, length, dtype, rate):
    (query, key, value, weight), bias, keys = make_case(depth, heads, length, dtype)

    def kernel(*heads):
        inputs = heads if kernels is gpu_attention else (heads,)
        return kernels.fused_attention(*inputs, bias, keys, depth=depth, rate=rate, interpret=True)

    def reference(q, k, v):
        return written_out(depth, q, k, v, bias, keys, rate)

    def loss_and_output(function):
        def loss(*inputs):
            output = function(*inputs).astype(jnp.float32) * weight.astype(jnp.float32)
            return jnp.sum(output), output

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))

    found, output = loss_and_output(kernel)(query, key, value)
    floats = [x.astype(jnp.float32) for x in (query, key, value)]
    expected, exact = loss_and_output(reference)(*floats)
    # bfloat16 has 8 bits; sums of hundreds of rounded terms lose at most two of them.
    limit = 2**-7 if dtype == "bfloat16" else 2**-19
    assert relative(output, exact) < limit
    for one, other in zip(found, expected, strict=True):
        assert relative(one, other) < 2 * limit


def initial_weights(config, *inputs):
    init = functools.partial(SelfAttention(config).init, deterministic=True)
    shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0), *inputs))
    return randomized(ones_in_norms(shapes), seed=0, scale=0.1)


@pytest.mark.parametrize(
    ("platform", "kernels", "options"),
    [
        pytest.param("tpu", tpu_attention, OTHER_HEADS, marks=pytest.mark.slow),
        pytest.param(
            "tpu", tpu_attention, {"joins_heads": True, "biases": False}, marks=pytest.mark.slow
        ),
        ("gpu", gpu_attention, OTHER_HEADS),
    ],
)
def test_module_gives_the_same_with_and_without_the_kernel(monkeypatch, platform, kernels, options):
    """Dropout is on: both use the same masks."""
    kernel = mock.Mock(side_effect=functools.partial(kernels.fused_attention, interpret=True))
    monkeypatch.setattr(kernels, "fused_attention", kernel)
    options = options | {"attention_probs_dropout_prob": RATE, "dtype": jnp.bfloat16}
    unfused = BertConfig(10, 256, 1, 4, 64, **options)
    fused = dataclasses.replace(unfused, fused_attention=platform)
    hidden = jnp.asarray(np.random.default_rng(1).normal(size=(2, 128, 256)), jnp.bfloat16)
    numbers = jnp.ones((2, 128), jnp.int32)
    mask = AttentionMask(jnp.zeros((2, 1, 1, 128)), numbers_BxL=numbers)
    weights = initial_weights(unfused, hidden, mask)

    @functools.partial(jax.jit, static_argnums=0)
    def output(config):
        rngs = {"dropout": jax.random.key(3)}
        return SelfAttention(config).apply(weights, hidden, mask, False, rngs=rngs)

    assert relative(output(fused), output(unfused)) < 2**-6
    assert kernel.call_count == 1


@pytest.mark.parametrize("rate", [pytest.param(0.0, marks=pytest.mark.slow), RATE])
@pytest.mark.parametrize(("platform", "kernels"), [("tpu", tpu_attention), ("gpu", gpu_attention)])
def test_the_kernels_keep_the_sequences_of_a_row_apart(monkeypatch, platform, kernels, rate):
    """One row has two sequences and padding, the other only one. The gradients are the same too."""
    length = 128
    kernel = functools.partial(kernels.fused_attention, interpret=True)
    monkeypatch.setattr(kernels, "fused_attention", kernel)
    unfused = BertConfig(10, 128, 1, 2, 64, attention_probs_dropout_prob=rate, dtype=jnp.bfloat16)
    joins_heads = platform == "tpu" and rate > 0
    fused = dataclasses.replace(unfused, fused_attention=platform, joins_heads=joins_heads)
    numbers = np.zeros((2, length), np.int32)
    numbers[0, :90], numbers[0, 50:90], numbers[1] = 1, 2, 1
    bias = attention_bias(jnp.asarray(numbers), segment_ids_BxL=jnp.asarray(numbers))
    ends = sequence_ends(jnp.asarray(numbers), 3)
    mask = AttentionMask(bias, ends, jnp.asarray(numbers))
    assert ends.tolist() == [[50, 90, 90], [length] * 3]
    rng = np.random.default_rng(1)
    hidden = jnp.asarray(rng.normal(size=(2, length, 128)), jnp.bfloat16)
    weights = initial_weights(unfused, hidden, mask)
    # Nothing reads the outputs at padding.
    upstream = rng.normal(size=hidden.shape) * (numbers > 0)[..., None]

    @functools.partial(jax.jit, static_argnums=0)
    def run(config, hidden):
        def loss(hidden):
            rngs = {"dropout": jax.random.key(3)}
            attention = SelfAttention(config)
            output = attention.apply(weights, hidden, mask, not rate, rngs=rngs)
            return jnp.sum(output.astype(jnp.float32) * upstream), output

        return jax.grad(loss, has_aux=True)(hidden)

    for one, other in zip(run(fused, hidden), run(unfused, hidden), strict=True):
        assert relative(one[numbers > 0], other[numbers > 0]) < 2**-6
    # Another sequence in the row changes nothing.
    before = run(fused, hidden)[1]
    gradient, output = run(fused, hidden.at[0, 50:90].add(1))
    assert jnp.array_equal(output[0, :50], before[0, :50])
    assert not jnp.array_equal(output[0, 50:90], before[0, 50:90])
    assert not gradient[0, 90:].any()


@pytest.mark.parametrize(
    ("heads", "width", "length", "on_tpu", "on_gpu"),
    [
        (16, 1024, 128, True, True),
        (16, 1024, 64, False, False),  # not measured on a GPU
        (12, 768, 512, True, True),
        (4, 256, 320, False, True),  # not a multiple of 128
        (4, 256, 1024, False, True),  # scores too large for on-chip memory
        (3, 192, 256, False, True),  # one head in its lanes
        (4, 160, 256, False, False),  # depth 40
        (4, 256, 272, False, False),
    ],
)
def test_fits(heads, width, length, on_tpu, on_gpu):
    config = BertConfig(10, width, 1, heads, 64)
    assert tpu_attention.fits(config, length) == on_tpu
    assert gpu_attention.fits(config, length) == on_gpu
