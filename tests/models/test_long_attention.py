"""Attention in long rows: in slices, and with JAX's kernel for TPUs, against whole attention."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import attention as attention_module
from bert_jax.models import splash_attention
from bert_jax.models.attention import AttentionMask, SelfAttention
from bert_jax.models.bert_config import BertConfig
from bert_jax.models.encoder import Encoder
from bert_jax.models.rope import rotate
from tests.small import ones_in_norms, randomized

CONFIG = BertConfig(
    10,
    32,
    3,
    2,
    16,
    attention_probs_dropout_prob=0.0,
    hidden_dropout_prob=0.0,
    norm="pre_and_final",
    biases=False,
    gated=True,
    rope_theta=500.0,
    local_rope_theta=50.0,
    local_attention=10,
    global_every=2,
)
LENGTH = 300


def make_rows():
    """The numbers of the sequences: two and padding in one row, one in the other."""
    numbers = np.zeros((2, LENGTH), np.int32)
    numbers[0, :130], numbers[0, 130:270], numbers[1, :299] = 1, 2, 1
    return jnp.asarray(numbers)


def initial(module, *inputs, **named):
    init = functools.partial(module.init, deterministic=True)
    shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0), *inputs, **named))
    return randomized(ones_in_norms(shapes), seed=0, scale=0.02)


@pytest.mark.parametrize(
    "changes", [{"causal": True}, {"num_key_value_heads": 1, "rope_scale": 1.5}]
)
def test_slices_give_the_outputs_and_gradients_of_whole_attention(monkeypatch, changes):
    """Rows end within a slice; a global and a local layer; both have other thetas."""
    config, numbers = dataclasses.replace(CONFIG, **changes), make_rows()
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(2, LENGTH, 32)), jnp.float32)
    upstream = rng.normal(size=hidden.shape) * (np.asarray(numbers) > 0)[..., None]
    encoder = Encoder(config)
    params = initial(encoder, hidden, numbers)
    params = jax.tree.map(lambda x: x * 5, params)

    def run(whole):
        monkeypatch.setattr(attention_module, "_MAX_WHOLE_LENGTH", LENGTH if whole else 0)

        def loss(params, hidden):
            output = encoder.apply(params, hidden, numbers, True, sequences_per_row=2)
            return jnp.sum(output * upstream)

        return jax.jit(jax.value_and_grad(loss, (0, 1)))(params, hidden)

    for one, other in zip(*map(jax.tree.leaves, (run(True), run(False))), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4 * np.abs(other).max())


@pytest.mark.parametrize("is_local", [pytest.param(False, marks=pytest.mark.slow), True])
def test_dropout_of_slices_keeps_the_mean(monkeypatch, is_local):
    """The mean over many masks is the output without dropout."""
    config = dataclasses.replace(CONFIG, attention_probs_dropout_prob=0.3)
    numbers, attend = make_rows(), SelfAttention(config, is_local)
    hidden = jax.random.normal(jax.random.key(1), (2, LENGTH, 32))
    mask = AttentionMask(None, numbers_BxL=numbers)
    params = initial(attend, hidden, mask)
    params = jax.tree.map(lambda x: x * 20, params)
    run = jax.jit(
        lambda key, deterministic: attend.apply(
            params, hidden, mask, deterministic, rngs={"dropout": key}
        ),
        static_argnums=1,
    )
    plain = run(jax.random.key(0), True)
    outputs = [run(jax.random.key(i), False) for i in range(60)]
    deviation = np.std(outputs, axis=0)
    assert deviation.mean() > 0.1 * np.abs(plain).mean()
    errors = (np.mean(outputs, axis=0) - plain)[np.asarray(numbers) > 0]
    assert np.abs(errors).mean() < 0.2 * deviation.mean()


@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.slow), 40])
def test_the_tpu_kernel_gives_the_outputs_and_gradients_of_slices(window):
    """The kernel is interpreted; blocks of 128 lie in, across and outside the window."""
    length, shape = 384, (2, 2, 384, 64)
    numbers = np.zeros((2, length), np.int32)
    numbers[0, :150], numbers[0, 150:350], numbers[1] = 1, 2, 1
    rng = np.random.default_rng(2)
    heads = [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(3)]
    heads[0] /= 8
    upstream = rng.normal(size=shape) * (numbers > 0)[:, None, :, None]
    kernel = functools.partial(splash_attention.attention, interpret=True)
    sliced = functools.partial(
        attention_module.sliced_attention, causal=False, dropout=attention_module.Dropout(0.0)
    )

    def run(attend):
        def loss(*heads):
            output = attend(*heads, jnp.asarray(numbers), window=window)
            return jnp.sum(output * upstream)

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*heads)

    for one, other in zip(*map(jax.tree.leaves, (run(kernel), run(sliced))), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(other).max())


@pytest.mark.slow
def test_memory_grows_linearly_with_the_length():
    """The scores of 8,192 tokens would take 537 MB in each layer."""
    config = dataclasses.replace(CONFIG, num_hidden_layers=2)

    def loss(hidden):
        numbers = jnp.ones(hidden.shape[:2], jnp.int32)
        return jnp.sum(Encoder(config).apply(params, hidden, numbers, True))

    short = jnp.zeros((1, 8, 32))
    params = initial(Encoder(config), short, jnp.ones((1, 8), jnp.int32))
    compiled = jax.jit(jax.grad(loss)).lower(jax.ShapeDtypeStruct((1, 8192, 32), "float32"))
    assert compiled.compile().memory_analysis().temp_size_in_bytes < 200e6


def test_rotary_frequencies_are_rounded():
    ones = np.tile(np.float32([1, 1, 0, 0]), (40, 1))
    for dtype in ("float16", "bfloat16"):
        frequency = float(jnp.asarray(0.1, dtype))
        rotated = np.asarray(rotate(ones, 100.0, dtype=dtype))[:, 1]
        np.testing.assert_allclose(rotated, np.cos(np.arange(40) * frequency), atol=1e-6)
