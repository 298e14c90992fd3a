"""The TPU attention kernel, run as plain JAX, against a plain implementation."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import BertConfig
from bert_jax.models import fused_attention as fused_lib
from bert_jax.models.attention import SelfAttention, attention_bias, sequence_ends
from bert_jax.models.dropout import keeps, mask_keys

RATE = 0.1


@pytest.fixture(params=[pytest.param((64, 4, 128), marks=pytest.mark.slow), (32, 4, 128)], ids=str)
def case(request):
    """Returns projections for (depth, heads, length); one sequence ends with padding."""
    depth, heads, length = request.param
    generator = np.random.default_rng(0)
    arrays = [
        jnp.asarray(generator.normal(size=(2, length, heads * depth)), jnp.bfloat16)
        for _ in range(4)
    ]
    bias = np.zeros((2, 1, length), np.float32)
    bias[1, :, length - 40 :] = np.finfo(np.float32).min
    return depth, heads, arrays, jnp.asarray(bias), mask_keys(jax.random.key(7), (2, heads))


def written_out(depth, heads, query, key, value, bias, keys, rate):
    """A plain implementation in float32; returns [B, L, A*K]."""

    def split(x):
        return x.astype(jnp.float32).reshape(*x.shape[:2], heads, depth)

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


@pytest.mark.parametrize("rate", [pytest.param(0.0, marks=pytest.mark.slow), RATE])
def test_output_and_gradients_match_plain_attention(case, rate):
    depth, heads, (query, key, value, weight), bias, keys = case

    def kernel(q, k, v):
        return fused_lib.fused_attention(
            q, k, v, bias, keys, depth=depth, rate=rate, interpret=True
        )

    def reference(q, k, v):
        return written_out(depth, heads, q, k, v, bias, keys, rate)

    def loss(function):
        return lambda *x: jnp.sum(function(*x).astype(jnp.float32) * weight.astype(jnp.float32))

    # bfloat16 has 8 bits; sums of hundreds of rounded terms lose at most two of them.
    assert relative(kernel(query, key, value), reference(query, key, value)) < 2**-7
    found = jax.grad(loss(kernel), (0, 1, 2))(query, key, value)
    floats = [x.astype(jnp.float32) for x in (query, key, value)]
    for one, other in zip(found, jax.grad(loss(reference), (0, 1, 2))(*floats), strict=True):
        assert relative(one, other) < 2**-6


def test_module_gives_the_same_with_and_without_the_kernel(monkeypatch):
    """Dropout is on: both use the same masks."""
    kernel = functools.partial(fused_lib.fused_attention, interpret=True)
    monkeypatch.setattr(fused_lib, "fused_attention", kernel)
    unfused = BertConfig(10, 256, 1, 4, 64, attention_probs_dropout_prob=RATE, dtype=jnp.bfloat16)
    fused = dataclasses.replace(unfused, fused_attention=True)
    hidden = jnp.asarray(np.random.default_rng(1).normal(size=(2, 128, 256)), jnp.bfloat16)
    bias = jnp.zeros((2, 1, 1, 128))
    weights = nn.unbox(SelfAttention(unfused).init(jax.random.key(0), hidden, bias, True))
    weights = jax.tree.map(lambda x: x * 5 + 0.01, weights)

    def output(config, deterministic):
        rngs = {} if deterministic else {"dropout": jax.random.key(3)}
        return SelfAttention(config).apply(weights, hidden, bias, deterministic, rngs=rngs)

    for deterministic in (True, False):
        one, other = output(fused, deterministic), output(unfused, deterministic)
        assert relative(one, other) < 2**-6, deterministic
    assert relative(output(unfused, True), output(unfused, False)) > 2**-4


@pytest.mark.parametrize("rate", [0.0, RATE])
def test_the_kernel_keeps_the_sequences_of_a_row_apart(monkeypatch, rate):
    """One row has two sequences and padding, the other only one. The gradients are the same too."""
    kernel = functools.partial(fused_lib.fused_attention, interpret=True)
    monkeypatch.setattr(fused_lib, "fused_attention", kernel)
    unfused = BertConfig(10, 128, 1, 2, 64, attention_probs_dropout_prob=rate, dtype=jnp.bfloat16)
    fused = dataclasses.replace(unfused, fused_attention=True)
    mask = np.zeros((2, 128), np.int32)
    mask[0, :90], mask[0, 50:90], mask[1] = 1, 2, 1
    bias = attention_bias(jnp.asarray(mask), segment_ids_BxL=jnp.asarray(mask))
    ends = sequence_ends(jnp.asarray(mask), 3)
    assert ends.tolist() == [[50, 90, 90], [128, 128, 128]]
    rng = np.random.default_rng(1)
    hidden = jnp.asarray(rng.normal(size=(2, 128, 128)), jnp.bfloat16)
    weights = nn.unbox(SelfAttention(unfused).init(jax.random.key(0), hidden, bias, True))
    weights = jax.tree.map(lambda x: x * 5 + 0.01, weights)
    # Nothing reads the outputs at padding.
    upstream = rng.normal(size=hidden.shape) * (mask > 0)[..., None]

    @functools.partial(jax.jit, static_argnums=0)
    def run(config, hidden):
        def loss(hidden):
            rngs = {"dropout": jax.random.key(3)}
            attention = SelfAttention(config)
            output = attention.apply(weights, hidden, bias, not rate, ends, rngs=rngs)
            return jnp.sum(output.astype(jnp.float32) * upstream), output

        return jax.grad(loss, has_aux=True)(hidden)

    for one, other in zip(run(fused, hidden), run(unfused, hidden), strict=True):
        assert relative(one[mask > 0], other[mask > 0]) < 2**-6
    # Another sequence in the row changes nothing.
    gradient, output = run(fused, hidden.at[0, 50:90].add(1))
    assert jnp.array_equal(output[0, :50], run(fused, hidden)[1][0, :50])
    assert not jnp.array_equal(output[0, 50:90], run(fused, hidden)[1][0, 50:90])
    assert not gradient[0, 90:].any()


@pytest.mark.parametrize(
    ("heads", "width", "length", "fits"),
    [
        (16, 1024, 128, True),
        (12, 768, 512, True),
        (4, 256, 96, False),  # not a multiple of 128
        (4, 256, 1024, False),  # scores too large for on-chip memory
        (3, 192, 128, False),  # one head in its lanes
        (4, 160, 128, False),  # depth 40
    ],
)
def test_fits(heads, width, length, fits):
    assert fused_lib.fits(BertConfig(10, width, 1, heads, 64), length) == fits
