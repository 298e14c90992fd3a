"""The model: initial values, arithmetic and rematerialization."""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import BertConfig
from bert_jax.models.bert_encoder import BertEncoder
from bert_jax.models.layers import ACTIVATIONS, LayerNorm, weight_init
from tests.models.common import (
    ODD,
    PLAIN,
    abstract_params,
    apply,
    compiled,
    init,
)
from tests.small import flat


def test_initial_values():
    config = BertConfig(3000, 96, 2, 4, 384)
    # The deviation of a normal distribution truncated at two deviations is 0.8796 times as large.
    cut = math.sqrt(1 - 2 * 2 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(2 / math.sqrt(2)))
    values, other = flat(init(config)), flat(init(config, seed=1))
    assert len(values) > 15
    for name, value in values.items():
        if name.endswith("word_embeddings"):
            assert value.shape == (3072, 96) and not value[3000:].any()
            value = value[:3000]
        if name.endswith("scale"):
            assert np.all(value == 1), name
        elif name.endswith("bias"):
            assert np.all(value == 0), name
        else:
            # Four standard errors; the excess kurtosis of a truncated normal is negative.
            error = 4 / math.sqrt(value.size)
            assert np.abs(value).max() <= 0.04, name
            assert np.abs(value).max() > 0.04 * (1 - 30 / value.size), name
            assert abs(value.mean()) < 0.02 * error, name
            assert abs(value.std() / (0.02 * cut) - 1) < error, name
    layers = [values[f"bert/encoder/layer_{i}/intermediate/kernel"].ravel() for i in range(2)]
    assert abs(np.corrcoef(*layers)[0, 1]) < 0.05
    assert not np.array_equal(
        values["bert/embeddings/word_embeddings"], other["bert/embeddings/word_embeddings"]
    )


def test_output_matrices_may_start_smaller_with_depth():
    config = BertConfig(50, 8, 3, 1, 16)
    plain, scaled = (
        nn.unbox(weight_init(c, "mlp", "embed", is_output=True)(jax.random.key(0), (16, 8)))
        for c in (config, dataclasses.replace(config, output_init_by_depth=True))
    )
    np.testing.assert_allclose(plain / scaled, math.sqrt(2 * 3), rtol=1e-6)


@pytest.mark.slow
def test_positions_may_start_as_sinusoids():
    """Compares with Vaswani et al. 2017, section 3.5, with all sines before all cosines."""
    width = 15
    config = BertConfig(50, width, 2, 1, 64, max_position_embeddings=40)
    at_random = flat(init(config))
    sinusoids = flat(init(dataclasses.replace(config, sinusoidal_positions=0.3)))
    table = sinusoids.pop("bert/embeddings/position_embeddings")
    assert at_random.pop("bert/embeddings/position_embeddings").shape == table.shape
    for position in (0, 1, 17, 39):
        angles = [position / 10_000 ** (i / 8) for i in range(8)]
        row = [*map(math.sin, angles), *map(math.cos, angles)]
        np.testing.assert_allclose(table[position], 0.3 * np.array(row)[:width], atol=1e-7)
    # All other parameters are unchanged.
    assert sinusoids.keys() == at_random.keys()
    for name, value in at_random.items():
        np.testing.assert_array_equal(sinusoids[name], value)


def test_padding_changes_nothing(params, batch):
    """The result depends neither on the values nor on the amount of padding."""
    inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    before = compiled(PLAIN)(params, batch)
    padding, real = batch["attention_mask"] == 0, batch["masked_lm_weights"] > 0
    assert padding.any()
    changed = batch | {
        "input_ids": np.where(padding, 77, batch["input_ids"]),
        "token_type_ids": np.where(padding, 1, batch["token_type_ids"]),
    }
    after = compiled(PLAIN)(params, changed)
    np.testing.assert_array_equal(before["mlm"][real], after["mlm"][real])
    np.testing.assert_array_equal(before["nsp"], after["nsp"])
    longer = {name: np.pad(x, ((0, 0), (0, 6))) for name, x in inputs.items()}
    after = compiled(PLAIN)(params, batch | longer)
    np.testing.assert_allclose(before["mlm"], after["mlm"], atol=1e-5, rtol=1e-5)


def test_the_activation_of_the_pooler(params, batch):
    tanh, other = (
        jax.jit(functools.partial(encoder.apply, deterministic=True))(
            {"params": params["bert"]},
            *(batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")),
        )[1]
        for encoder in (
            BertEncoder(dataclasses.replace(PLAIN, num_hidden_layers=1, pooler_act=name))
            for name in ("tanh", "gelu")
        )
    )
    expected = ACTIVATIONS["gelu"](np.arctanh(tanh))
    clear = np.abs(tanh) < 0.99
    assert clear.sum() > 20
    np.testing.assert_allclose(other[clear], expected[clear], atol=1e-4, rtol=1e-3)


@pytest.fixture(scope="module")
def gradient(params, batch):
    """Builds the gradient of a loss with dropout, a function of the parameters."""

    def make(remat):
        config = dataclasses.replace(ODD, num_hidden_layers=1, remat=remat)

        def loss(p):
            rngs = {"dropout": jax.random.key(3)}
            output = apply(config, p, batch, deterministic=False, rngs=rngs)
            return jnp.sum(output["mlm"] ** 2) + jnp.sum(output["nsp"] ** 2)

        return jax.grad(loss)

    return make


@pytest.fixture(scope="module")
def plain_gradient(params, gradient):
    return flat(jax.jit(gradient("none"))(params))


@pytest.mark.parametrize("remat", ["dots", pytest.param("full", marks=pytest.mark.slow)])
def test_rematerialization_changes_no_gradient(params, gradient, plain_gradient, remat):
    """With dropout, the recomputation must draw the same random bits."""
    traced = jax.jit(gradient(remat)).trace(params)
    assert "remat" in str(traced.jaxpr)
    actual = flat(traced.lower().compile()(params))
    # The absolute tolerance is for a key's bias, which changes no probability: its gradient is
    # only rounding error.
    largest = max(np.abs(value).max() for value in plain_gradient.values())
    for name, value in plain_gradient.items():
        np.testing.assert_allclose(
            actual[name], value, rtol=1e-4, atol=1e-6 * largest, err_msg=name
        )


def test_bfloat16_is_close_and_gives_float32_logits(params, batch):
    exact = compiled(PLAIN)(params, batch)
    rounded = compiled(dataclasses.replace(PLAIN, dtype=jnp.bfloat16))(params, batch)
    for name, one in exact.items():
        other = rounded[name]
        assert other.dtype == jnp.float32
        # bfloat16 has 8 bits; three layers add a few rounding errors of this size.
        assert np.abs(one - other).max() < 0.05 * np.abs(one).max()
        assert np.abs(one - other).max() > 0, "the computation was not in bfloat16"
    encoder = BertEncoder(dataclasses.replace(PLAIN, dtype=jnp.bfloat16))
    inputs = [batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")]
    hidden, pooled = jax.eval_shape(
        lambda p: encoder.apply({"params": p}, *inputs, deterministic=True), params["bert"]
    )
    assert hidden.dtype == pooled.dtype == jnp.bfloat16


def test_bfloat16_parameters_and_statistics_stay_float32(params, batch):
    config = dataclasses.replace(PLAIN, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(abstract_params(config))} == {
        jnp.dtype("float32")
    }
    gradient = jax.eval_shape(jax.grad(lambda p: apply(config, p, batch)["mlm"].sum()), params)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    # A hidden state of mean 300 and deviation 1. With bfloat16 statistics, whose resolution is 2
    # there, LayerNorm would return noise.
    x = 300 + np.random.default_rng(0).integers(-3, 4, (4, 64)) * 2.0
    identity = {"params": {"scale": jnp.ones(64), "bias": jnp.zeros(64)}}
    output = LayerNorm(config).apply(identity, jnp.asarray(x, jnp.bfloat16))
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(np.asarray(output, np.float32), expected, atol=0.02)
