"""The weights of a text for the tokens of the vocabulary: in blocks, and those of a table."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import BertConfig, sparse_model
from bert_jax.models.sparse_model import SparseModel
from bert_jax.training.state import init_params
from tests.small import random_params

# 512 rows of the table, of which 117 only pad it.
CONFIG = BertConfig(
    vocab_size=395,
    hidden_size=12,
    num_hidden_layers=1,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
RNG = np.random.default_rng(0)
IDS_NxL = RNG.integers(5, 395, (4, 9)).astype(np.int32)
LENGTHS_N = np.array([9, 5, 7, 0])
MASK_NxL = (np.arange(9) < LENGTHS_N[:, None]).astype(np.int32)
INPUTS = {"input_ids": IDS_NxL, "token_type_ids": 0 * IDS_NxL, "attention_mask": MASK_NxL}
CASES = {
    "tied": ({}, {}),
    "untied": ({"tied_decoder": False, "head_transform": False}, {"double_log": True}),
    "narrow": (
        {"embedding_size": 7, "biasless": ("decoder",)},
        {"pooling": "sum", "double_log": True},
    ),
}


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, batch):
    return model.apply({"params": params}, batch, deterministic=True)["embeddings"]


def written_out(model, params, batch):
    """Computes the weights from all logits; returns [N, W]."""
    logits_NxLxW = model.apply(
        {"params": params}, batch, method=lambda model, batch: all_logits(model, batch)
    )
    is_token = batch["attention_mask"][..., None] > 0
    weights = jnp.where(is_token, jnp.log1p(jax.nn.relu(logits_NxLxW)), 0)
    if model.double_log:
        weights = jnp.log1p(weights)
    return weights.sum(axis=1) if model.pooling == "sum" else weights.max(axis=1)


def all_logits(model, batch):
    hidden, _ = model.bert(*(batch[name] for name in model.INPUTS), deterministic=True)
    return model.mlm.logits(hidden, model.bert.embeddings.table_WxE)


@pytest.mark.parametrize("case", CASES)
def test_blocks_give_the_weights_and_gradients_of_all_logits(monkeypatch, case):
    changes, options = CASES[case]
    model = SparseModel(dataclasses.replace(CONFIG, **changes), **options)
    params = random_params(model, seed=1, scale=0.5)
    weight = RNG.normal(size=(4, 512)).astype(np.float32)

    def of(function):
        def loss(params):
            vectors = function(params)
            return jnp.sum(vectors * weight), vectors

        gradients, vectors = jax.jit(jax.grad(loss, has_aux=True))(params)
        return vectors, *jax.tree.leaves(gradients)

    expected = of(lambda params: written_out(model, params, INPUTS))
    vectors = np.asarray(expected[0])
    assert 0.2 < (vectors[:3, :395] > 0).mean() < 1
    assert not vectors[3].any(), "no position of padding counts"
    assert not vectors[:, 395:].any()
    monkeypatch.setattr(sparse_model, "_MAX_BLOCK", 100)
    found = of(lambda params: run(model, params, INPUTS))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_the_gradient_needs_the_memory_of_a_block_of_the_vocabulary():
    """All logits of the 32 texts of 256 tokens take 956 MiB.

    The limit includes the memory of the head's layer.
    """
    config = dataclasses.replace(CONFIG, vocab_size=30_522, hidden_size=384)
    model = SparseModel(config)
    params = nn.unbox(jax.eval_shape(lambda: init_params(model, 0)))
    hidden = jax.ShapeDtypeStruct((32, 256, 384), jnp.float32)
    is_token = jax.ShapeDtypeStruct((32, 256), bool)

    def loss(params, hidden, is_token):
        return jnp.sum(model.apply({"params": params}, hidden, is_token, method="_pooled"))

    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(params, hidden, is_token).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 300 * 2**20
    assert "[32,256,30592]" not in compiled.as_text()


def test_bfloat16_rounds_the_states_only():
    params = random_params(SparseModel(CONFIG), seed=1, scale=0.5)
    exact, rounded = (
        run(SparseModel(dataclasses.replace(CONFIG, dtype=dtype)), params, INPUTS)
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    assert rounded.dtype == jnp.float32
    np.testing.assert_allclose(rounded, exact, atol=0.1)


def test_a_static_query_has_each_of_its_tokens_once():
    model = SparseModel(CONFIG, static_queries=True, special_ids=(2, 3))
    params = random_params(model, seed=1)
    ids = np.array([[2, 7, 9, 7, 3, 0, 0], [2, 394, 3, 0, 0, 0, 0]], np.int32)
    batch = {"input_ids": ids, "token_type_ids": 0 * ids}
    batch["attention_mask"] = (ids > 0).astype(np.int32)

    def vectors(params):
        return run(model.for_queries(), params, batch)

    expected = np.zeros((2, 512), np.float32)
    table = params["query_weights"]
    expected[0, [7, 9]], expected[1, 394] = table[np.array([7, 9])], table[394]
    np.testing.assert_array_equal(vectors(params), expected)
    gradients = jax.grad(lambda params: vectors(params).sum())(params)
    np.testing.assert_array_equal(gradients["query_weights"], (expected != 0).sum(axis=0))
    # Documents do not read the table. Without a table, queries are encoded like documents.
    plain = SparseModel(CONFIG)
    rest = {name: params[name] for name in ("bert", "mlm")}
    np.testing.assert_array_equal(
        run(model, params, INPUTS), run(plain.for_queries(), rest, INPUTS)
    )
