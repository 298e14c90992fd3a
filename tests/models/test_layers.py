"""The hand-written backward passes against JAX's automatic differentiation."""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import BertConfig
from bert_jax.models.dropout import keeps, mask_keys
from bert_jax.models.layers import ACTIVATIONS, LayerNorm, add_bias, column_sums, gelu, stored
from tests.models.common import assert_independent, assert_rate

CONFIG = BertConfig(10, 64, 1, 1, 64)


def normal(shape, dtype=jnp.float32, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def gradients(function, *inputs):
    """Returns the gradients of a random projection of the outputs."""
    weights = normal(jax.eval_shape(function, *inputs).shape, seed=9)
    loss = lambda *x: jnp.sum(function(*x).astype(jnp.float32) * weights)  # noqa: E731
    return jax.jit(jax.grad(loss, tuple(range(len(inputs)))))(*inputs)


@pytest.mark.parametrize(
    ("kind", "module", "names"),
    [("layer", nn.LayerNorm, ("scale", "bias")), ("rms", nn.RMSNorm, ("scale",))],
)
def test_outputs_and_gradients_of_norms_match_flax(kind, module, names):
    inputs = 3 + 2 * normal((4, 5, 64)), *(normal((64,), seed=i) for i in range(len(names)))

    def run(module):
        return lambda x, *values: module.apply({"params": dict(zip(names, values, strict=True))}, x)

    ours = run(LayerNorm(dataclasses.replace(CONFIG, norm_kind=kind)))
    theirs = run(module(epsilon=CONFIG.layer_norm_eps))
    np.testing.assert_allclose(ours(*inputs), theirs(*inputs), atol=1e-5)
    for one, other in zip(gradients(ours, *inputs), gradients(theirs, *inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "name, exact",
    [
        ("gelu", lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2))),
        ("gelu_new", lambda x: x / (1 + math.exp(-math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)))),
        ("relu", lambda x: max(x, 0.0)),
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("tanh", math.tanh),
    ],
)
def test_activations(name, exact):
    x = np.linspace(-6, 6, 101, dtype=np.float32)
    expected = [exact(value) for value in x.tolist()]
    np.testing.assert_allclose(ACTIVATIONS[name](x), expected, atol=1e-6)


def test_bfloat16_gelu_is_exact_up_to_rounding():
    # Every bfloat16 from -10 to 10.
    x = jnp.arange(2**16, dtype=jnp.uint16).view(jnp.bfloat16)
    x = x[jnp.abs(x) <= 10]
    x64 = np.asarray(x, np.float64)
    phi = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x64])
    slope = phi + x64 * np.exp(-x64 * x64 / 2) / math.sqrt(2 * math.pi)
    # Half a unit of bfloat16's last place, plus the error of the approximation.
    for found, exact in (
        (gelu(x), x64 * phi),
        (jax.jit(jax.vmap(jax.grad(lambda v: gelu(v).astype(jnp.float32))))(x), slope),
    ):
        error = np.abs(np.asarray(found, np.float64) - exact)
        assert np.all(error <= np.abs(exact) * 2**-8 + 4e-5)
    assert not np.any(gelu(x[x < -5]))


def test_bfloat16_gelu_has_the_same_gradient_on_gpus(monkeypatch):
    x = 3 * normal((4096,), jnp.bfloat16)
    slopes = jax.grad(lambda x: jnp.sum(gelu(x).astype(jnp.float32)))
    expected = slopes(x)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, cuda, default: cuda(*x))
    assert "optimization_barrier" in str(jax.make_jaxpr(slopes)(x))
    np.testing.assert_array_equal(slopes(x), expected)


@pytest.mark.parametrize("platform", ["default", "cuda"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_column_sums_add_up_in_float32(dtype, platform, monkeypatch):
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, **to: to[platform](*x))
    x = normal((4, 300, 24), dtype)
    sums = column_sums(x)
    assert sums.dtype == jnp.float32
    exact = np.asarray(x, np.float64).sum((0, 1))
    # Sums of 1,200 numbers: bfloat16 accumulation would be off by more than 1.
    np.testing.assert_allclose(sums, exact, atol=1e-4)


def test_gradients_of_add_bias():
    x, bias = normal((3, 7, 24)), normal((24,), seed=1)
    np.testing.assert_array_equal(add_bias(x, bias), x + bias)
    for one, other in zip(gradients(add_bias, x, bias), gradients(jnp.add, x, bias), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_stored_arrays_and_their_gradients_are_unchanged():
    x = jnp.arange(3.0)
    function = jax.jit(jax.value_and_grad(lambda x: jnp.sum(stored(x) ** 2)))
    value, gradient = function(x)
    assert value == 5 and gradient.tolist() == [0, 2, 4]
    # The gradient has no barrier.
    assert function.lower(x).as_text().count("optimization_barrier") == 1


def test_dropout_masks_are_random():
    """Tests pairs of masks, and distances within a mask at which a weak hash would fail."""
    rate, size = 0.1, 2**16
    keys = mask_keys(jax.random.key(0), (6,))
    index = jnp.arange(size, dtype=jnp.int32)
    dropped = ~np.asarray(keeps(index, tuple(key[:, None] for key in keys), rate))
    for mask in dropped:
        assert_rate(mask, rate)
        for distance in (1, 2, 3, 4, 64, 128, 512, 1024, 4096, 2**15):
            assert_independent(mask[distance:], mask[:-distance], rate)
        # The counts in 256 ranges of 256 elements are binomially distributed.
        counts = mask.reshape(256, 256).sum(1)
        expected = 256 * rate * (1 - rate)
        assert abs(counts.var() - expected) < 4 * expected * math.sqrt(2 / 255)
    for i in range(6):
        for j in range(i):
            assert_independent(dropped[i], dropped[j], rate)
    # Other keys of jax.random give other masks.
    other = ~np.asarray(keeps(index, tuple(k[0] for k in mask_keys(jax.random.key(1), (1,))), rate))
    assert_independent(dropped[0], other, rate)


def test_mask_keys_differ_for_every_mask():
    first, second = mask_keys(jax.random.key(3), (512, 16))
    assert np.unique(first).size == np.unique(second).size == 512 * 16
