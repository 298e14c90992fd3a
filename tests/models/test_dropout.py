"""Dropout: its rates and positions, and its independence between layers, steps and examples.

Every dropout call in a running step is recorded with its values, under rematerialization and
gradient accumulation.
"""

import collections
import contextlib
import dataclasses
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.models import BertConfig
from bert_jax.models.attention import SelfAttention
from bert_jax.models.dropout import Dropout, keeps, mask_keys
from bert_jax.models.layers import LayerNorm
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.weighted import WeightedTerms
from bert_jax.training.state import TrainState
from bert_jax.training.step import make_train_step
from tests import cheap
from tests.models.common import assert_independent, assert_rate, pretraining_model
from tests.small import random_batch, random_params

LAYERS, HIDDEN_RATE, PROBS_RATE = 2, 0.1, 0.2
CONFIG = BertConfig(
    50,
    48,
    LAYERS,
    2,
    40,
    max_position_embeddings=32,
    hidden_dropout_prob=HIDDEN_RATE,
    attention_probs_dropout_prob=PROBS_RATE,
)
# Rematerialized layers of one group are the hardest case.
COMPILED = pytest.mark.parametrize(
    ("remat", "groups"),
    [("full", 1), pytest.param("none", 0, marks=pytest.mark.slow)],
)


@dataclasses.dataclass
class Call:
    """A recorded call of a module."""

    path: tuple[str, ...]
    inputs: np.ndarray
    output: np.ndarray

    @property
    def dropped(self):
        return (self.output == 0) & (self.inputs != 0)


@contextlib.contextmanager
def watch(*neighbors, named=()):
    """Yields a list of the calls of dropout modules, also inside jit, scan and remat.

    The list includes modules of the classes `neighbors` and modules with the names `named`.
    """
    calls = []

    def intercept(method, args, kwargs, context):
        output, module = method(*args, **kwargs), context.module
        watched = isinstance(module, (Dropout, *neighbors)) or module.name in named
        # The pooler's dropout has the rate 0.
        watched = watched and getattr(module, "rate", 1)
        if watched and context.method_name == "__call__":

            def record(inputs, output, path=module.path):
                calls.append(Call(path, np.array(inputs), np.array(output)))

            jax.debug.callback(record, args[0], output)
        return output

    with nn.intercept_methods(intercept):
        yield calls
        jax.effects_barrier()


def is_embedding(call):
    return call.path[-2:] == ("embeddings", "dropout")


def is_probs(call):
    return "attention" in call.path


def rate(call):
    return PROBS_RATE if is_probs(call) else HIDDEN_RATE


@pytest.fixture(scope="module")
def single():
    """Returns parameters of single layers, none of them zero, and a batch without padding."""
    batch = random_batch(0, batch_size=8, length=32, predictions=3, vocab_size=50)
    batch["attention_mask"] = np.ones_like(batch["attention_mask"])
    return random_params(pretraining_model(CONFIG), seed=1, scale=0.1), batch


def setting(single, remat="none", groups=0):
    params, batch = single
    model = pretraining_model(dataclasses.replace(CONFIG, remat=remat, layer_groups=groups))
    if groups:
        layers = {f"layer_{g}": params["bert"]["encoder"][f"layer_{g}"] for g in range(groups)}
        params = params | {"bert": params["bert"] | {"encoder": layers}}
    return model, params, batch


def forward(model, params, batch):
    rngs = {"dropout": jax.random.key(3)}
    run = jax.jit(
        lambda p: model.apply({"params": p}, batch, deterministic=False, rngs=rngs),
        compiler_options=cheap.compiler_of_users(),
    )
    return jax.block_until_ready(run(params))


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@COMPILED
def test_each_dropout_has_its_rate_and_scales_the_rest(single, remat, groups):
    with watch() as calls:
        forward(*setting(single, remat, groups))
    assert len(calls) == 1 + 3 * LAYERS
    assert sum(map(is_probs, calls)) == LAYERS and sum(map(is_embedding, calls)) == 1
    for call in calls:
        assert_rate(call.dropped, rate(call))
        kept = ~call.dropped
        np.testing.assert_allclose(
            call.output[kept], call.inputs[kept] / (1 - rate(call)), rtol=1e-6
        )


def test_each_dropout_is_where_bert_has_it(single):
    model, params, batch = setting(single)
    with watch(LayerNorm, SelfAttention, named=("output", "pooler")) as calls:
        output = forward(model, params, batch)

    def one(*suffix):
        (call,) = (call for call in calls if call.path[-len(suffix) :] == suffix)
        return call

    # Embeddings: after their LayerNorm.
    embedded = one("embeddings", "dropout")
    close(embedded.inputs, one("embeddings", "layer_norm").output)
    hidden = embedded.output
    for i in range(LAYERS):
        layer = f"layer_{i}"
        attention = one(layer, "attention")
        close(attention.inputs, hidden)
        # Probabilities: after the softmax, directly before their use.
        probs = one(layer, "attention", "Dropout_0")
        assert probs.inputs.min() >= 0
        close(probs.inputs.sum(-1), 1.0)
        p = params["bert"]["encoder"][layer]["attention"]
        value = np.einsum("BLD,DAK->BALK", hidden, p["value_kernel"]) + p["value_bias"][:, None]
        context = np.einsum("BAQL,BALK->BAQK", probs.output, value)
        projected = np.einsum("BAQK,AKD->BQD", context, p["output_kernel"]) + p["output_bias"]
        close(attention.output, projected)
        # Both sublayers: only their output, before the residual sum.
        dropped = one(layer, "Dropout_0")
        close(dropped.inputs, attention.output)
        norm = one(layer, "attention_layer_norm")
        close(norm.inputs, hidden + dropped.output)
        dropped = one(layer, "Dropout_1")
        close(dropped.inputs, one(layer, "output").output)
        last = one(layer, "output_layer_norm")
        close(last.inputs, norm.output + dropped.output)
        hidden = last.output
    # Nowhere else: both heads compute the same as without dropout.
    close(one("pooler").inputs, hidden)

    def heads(m, hidden):
        mlm = m.mlm(hidden, batch["masked_lm_positions"], m.bert.embeddings.table_WxE)
        return mlm, m.nsp(m.bert.pooler(hidden, batch["attention_mask"]))

    mlm, nsp = jax.jit(lambda x: model.apply({"params": params}, x, method=heads))(hidden)
    close(output["mlm"], mlm)
    close(output["nsp"], nsp)


@COMPILED
def test_all_masks_of_a_training_run_differ(single, remat, groups):
    """Compares sites, layers, microbatches, steps, examples and heads over two steps."""
    model, params, batch = setting(single, remat, groups)
    optimizer = optax.sgd(0.0)
    objective = WeightedTerms(make_terms(), (1.0, 1.0))
    schedule = optax.constant_schedule(0.0)
    step = jax.jit(
        make_train_step(model, optimizer, schedule, objective, seed=0, accumulation_steps=2)
    )
    with watch() as calls:
        state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))
        for _ in range(2):
            state, _ = step(state, batch, {})
        jax.block_until_ready(state)
    masks = collections.Counter((is_probs(c), c.dropped.shape, c.dropped.tobytes()) for c in calls)
    # A rematerialized block runs twice and must use the same mask both times.
    runs = collections.Counter(masks.values())
    blocks = 4 * 3 * LAYERS
    assert runs == ({1: 4, 2: blocks} if remat == "full" else {1: 4 + blocks})
    for probs in (False, True):
        chosen = [
            np.frombuffer(mask, bool).reshape(shape)
            for is_probs_, shape, mask in masks
            if is_probs_ == probs
        ]
        assert len(chosen) == 4 * (LAYERS if probs else 1 + 2 * LAYERS)
        probability = PROBS_RATE if probs else HIDDEN_RATE
        for one, other in itertools.combinations(chosen, 2):
            assert_independent(one, other, probability)
        for mask in chosen:
            assert_independent(mask[:2], mask[2:], probability)  # examples
            assert_independent(mask[0], mask[1], probability)
            if probs:
                assert_independent(mask[:, 0], mask[:, 1], probability)  # heads


@pytest.mark.slow
def test_attention_sublayer_may_have_its_own_rate(single):
    _, params, batch = setting(single)
    model = pretraining_model(dataclasses.replace(CONFIG, attention_output_dropout_prob=0.4))
    with watch() as calls:
        forward(model, params, batch)
    sublayers = [call for call in calls if not is_probs(call) and not is_embedding(call)]
    assert len(sublayers) == 2 * LAYERS
    for call in sublayers:
        assert_rate(call.dropped, 0.4 if call.path[-1] == "Dropout_0" else HIDDEN_RATE)


def test_kept_values_are_scaled_without_bias_in_bfloat16():
    x = jnp.full((1, 4, 8), 0.9, jnp.bfloat16)
    rngs = {"dropout": jax.random.key(0)}
    values = set(np.asarray(Dropout(0.1).apply({}, x, False, rngs=rngs), np.float64).ravel())
    # With 1 / 0.9 rounded to bfloat16, which is 1.109375, the value would be 0.9961.
    assert values == {0.0, 1.0}


@pytest.mark.parametrize("rate", [1e-12, 1 - 2**-40])
def test_rates_near_0_and_1(rate):
    """An element with the largest of the 2^32 hash values is kept at any rate below 1."""
    indices = jnp.arange(1000, dtype=jnp.int32)
    kept = keeps(indices, mask_keys(jax.random.key(0), ()), rate)
    assert kept.all() if rate < 0.5 else not kept.any()
