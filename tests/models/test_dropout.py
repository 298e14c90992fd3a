"""Dropout: how much, where, and independent between layers, steps and examples.

The weights are chosen such that the output shows which elements were dropped.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import BertConfig
from bert_jax.models.attention import SelfAttention
from bert_jax.models.dropout import Dropout, keeps, mask_keys
from bert_jax.models.embeddings import BertEmbeddings
from bert_jax.models.encoder import Block, Encoder
from tests.models.common import ODD, PLAIN, apply, assert_independent, assert_share, compiled

RATE = 0.1
RNGS = {"dropout": jax.random.key(0)}
CONFIG = BertConfig(50, 64, 2, 2, 32, max_position_embeddings=64, attention_probs_dropout_prob=RATE)


def test_what_is_kept_is_scaled_as_exactly_as_bfloat16_can():
    x = jnp.full((1, 4, 8), 0.9, jnp.bfloat16)
    values = set(np.asarray(Dropout(RATE).apply({}, x, False, rngs=RNGS), np.float64).ravel())
    # Scaled by 1 / 0.9 rounded to bfloat16, which is 1.109375, it would be 0.9961.
    assert values == {0.0, 1.0}


@pytest.mark.parametrize("rate", [1e-12, 1 - 2**-40])
def test_rates_at_the_ends(rate):
    """The largest of the 2^32 hash values is kept at any rate below 1."""
    places = jnp.arange(1000, dtype=jnp.int32)
    kept = keeps(places, mask_keys(jax.random.key(0), ()), rate)
    assert kept.all() if rate < 0.5 else not kept.any()


def zeros(module, *arguments):
    """The module's parameters, all zero but LayerNorm's scales."""
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *arguments))["params"]
    return jax.tree_util.tree_map_with_path(
        lambda path, x: (np.ones if "scale" in str(path[-1]) else np.zeros)(x.shape, np.float32),
        nn.unbox(shapes),
    )


def test_embedding_dropout_follows_the_layer_norm():
    module = BertEmbeddings(CONFIG)
    ids = jnp.full((40, 64), 7)
    variables = {"params": nn.unbox(module.init(jax.random.key(0), ids, ids * 0, True))["params"]}
    exact = np.asarray(module.apply(variables, ids, ids * 0, True))
    np.testing.assert_array_equal(exact[0], exact[1])

    @jax.jit
    def run(key):
        rngs = {"dropout": jax.random.key(key)}
        return module.apply(variables, ids, ids * 0, False, rngs=rngs)

    output = np.asarray(run(1))
    dropped = output == 0
    # The kept elements are LayerNorm's output, scaled, so dropout came after it.
    np.testing.assert_allclose(output[~dropped], exact[~dropped] / (1 - RATE), rtol=1e-5)
    assert_share(dropped, RATE)
    assert_independent(dropped[:20], dropped[20:])
    assert_independent(dropped[:, :32], dropped[:, 32:])
    assert_independent(dropped, np.asarray(run(2)) == 0)
    np.testing.assert_array_equal(output, run(1))


def test_attention_dropout_is_on_the_probabilities_of_every_head_and_example():
    """One query, key and value arrangement under which the output *is* the probabilities."""
    module, length, depth = SelfAttention(CONFIG), 64, 32
    eye = jnp.eye(length)
    weights = {
        "query_kernel": jnp.zeros((64, 2, depth)),
        "query_bias": jnp.zeros((2, depth)),
        "key_kernel": jnp.zeros((64, 2, depth)),
        "key_bias": jnp.zeros((2, depth)),
        # Both heads show the probabilities of the first 32 keys.
        "value_kernel": jnp.stack([eye[:, :depth]] * 2, axis=1),
        "value_bias": jnp.zeros((2, depth)),
        "output_kernel": eye.reshape(2, depth, length),
        "output_bias": jnp.zeros(64),
    }
    hidden = jnp.tile(eye[None], (6, 1, 1))
    bias = jnp.zeros((6, 1, 1, length))

    @jax.jit
    def run(key):
        rngs = {"dropout": jax.random.key(key)}
        output = module.apply({"params": weights}, hidden, bias, False, rngs=rngs)
        return output.reshape(6, length, 2, depth)

    output = np.asarray(run(1))
    dropped = output == 0
    np.testing.assert_allclose(output[~dropped], 1 / length / (1 - RATE), rtol=1e-5)
    assert_share(dropped, RATE)
    assert_independent(dropped[:3], dropped[3:])  # examples
    assert_independent(dropped[:, :, 0], dropped[:, :, 1])  # heads
    assert_independent(dropped[:, :32], dropped[:, 32:])  # queries
    assert_independent(dropped, np.asarray(run(2)) == 0)  # steps
    exact = module.apply({"params": weights}, hidden, bias, True)
    np.testing.assert_allclose(exact, 1 / length, rtol=1e-5)


@pytest.mark.parametrize("sublayer", ["attention", "feed-forward"])
def test_sublayer_dropout_comes_before_the_residual_sum(sublayer):
    module = Block(CONFIG, deterministic=False)
    hidden = jnp.tile(jnp.linspace(-1, 1, 64), (8, 64, 1))
    bias = jnp.zeros((8, 1, 1, 64))
    weights = zeros(Block(CONFIG, deterministic=True), hidden, bias)
    # The sublayer's output is 100 everywhere: beside it the residual is small.
    if sublayer == "attention":
        weights["attention"]["output_bias"] += 100.0
    else:
        weights["output"]["bias"] += 100.0

    rngs = {"dropout": jax.random.key(1)}
    output = jax.jit(lambda p: module.apply({"params": p}, hidden, bias, rngs=rngs))(weights)
    output = np.asarray(output)
    # LayerNorm leaves two clusters, far apart: kept above, dropped below.
    dropped = output < 0.5 * (output.max(-1, keepdims=True) + output.min(-1, keepdims=True))
    assert_share(dropped, RATE)
    assert_independent(dropped[:4], dropped[4:])
    # The residual was not dropped: within a cluster the input's order is left.
    kept_row = output[0, 0][~dropped[0, 0]]
    assert np.all(np.diff(kept_row) > 0)
    dropped_row = output[0, 0][dropped[0, 0]]
    assert np.all(np.diff(dropped_row) > 0)


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("scan_layers", [False, True])
def test_layers_and_sublayers_draw_masks_of_their_own(scan_layers, remat):
    config = dataclasses.replace(CONFIG, scan_layers=scan_layers, remat=remat)
    hidden, mask = jnp.zeros((8, 64, 64)), jnp.ones((8, 64), jnp.int32)
    module = Encoder(config)
    shapes = zeros(Encoder(dataclasses.replace(config, remat="none")), hidden, mask, True)
    rngs = {"dropout": jax.random.key(5)}
    run = jax.jit(lambda p: module.apply({"params": p}, hidden, mask, False, rngs=rngs))

    def dropped(layer, path):
        """The mask of one sublayer of one layer: only its output is not zero."""

        def mark(keys, x):
            names, x = [key.key for key in keys], x.copy()
            if tuple(names[-2:]) == path:
                x[layer if scan_layers else ...] = scan_layers or names[0] == f"layer_{layer}"
            return x

        return np.asarray(run(jax.tree_util.tree_map_with_path(mark, shapes))) < 0

    masks = [
        dropped(layer, path)
        for layer in (0, 1)
        for path in (("attention", "output_bias"), ("output", "bias"))
    ]
    for i, one in enumerate(masks):
        assert_share(one, RATE)
        for other in masks[:i]:
            assert_independent(one, other)


def test_deterministic_needs_no_key_and_drops_nothing(params, batch):
    one, other = compiled(ODD)(params, batch), compiled(PLAIN)(params, batch)
    np.testing.assert_array_equal(one["mlm"], other["mlm"])


@pytest.mark.parametrize("name", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_each_rate_controls_its_own_dropout(params, batch, name):
    config = dataclasses.replace(PLAIN, **{name: 0.1})
    active = apply(config, params, batch, deterministic=False, rngs=RNGS)
    assert np.abs(active["nsp"] - compiled(ODD)(params, batch)["nsp"]).max() > 1e-3
