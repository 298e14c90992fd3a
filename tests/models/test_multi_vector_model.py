"""A vector for each token, and queries that are expanded by [MASK]s."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import BertConfig, gpu_attention, tpu_attention
from bert_jax.models.multi_vector_model import MultiVectorModel
from tests.small import random_params

MASK_ID, LENGTH = 4, 12
CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=16,
)
# The layers of ModernBERT, the first global and the second local.
LOCAL = {
    "norm": "pre_and_final",
    "rope_theta": 500.0,
    "local_rope_theta": 50.0,
    "local_attention": 40,
    "global_every": 2,
}
RNG = np.random.default_rng(0)


def rows(lengths, length):
    ids = RNG.integers(5, 50, (len(lengths), length)).astype(np.int32)
    mask = (np.arange(length) < np.array(lengths)[:, None]).astype(np.int32)
    # The ids at padding do not matter.
    return {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": mask}


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, batch):
    return model.apply({"params": params}, batch, deterministic=True)


def test_documents_have_a_vector_of_length_1_for_each_token_that_is_not_skipped():
    model = MultiVectorModel(CONFIG, width=8, skip_ids=(7, 9))
    params = random_params(model, seed=1)
    assert params["projection"].keys() == {"kernel"}
    batch = rows([9, 5, 2], 9)
    batch["input_ids"][:, 1] = [7, 9, 11]
    output = run(model, params, batch)
    vectors, is_vector = output["embeddings"], output["is_vector"]
    expected = batch["attention_mask"] > 0
    expected &= ~np.isin(batch["input_ids"], [7, 9])
    np.testing.assert_array_equal(is_vector, expected)
    assert vectors.shape == (3, 9, 8) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), expected, rtol=1e-5)
    assert not np.asarray(vectors)[~expected].any()
    # A query has a vector for every token. The encoder reads skipped tokens too.
    query = run(model.for_queries(), params, batch)
    np.testing.assert_array_equal(query["is_vector"], batch["attention_mask"] > 0)
    np.testing.assert_array_equal(np.asarray(query["embeddings"])[expected], vectors[expected])


@functools.partial(jax.jit, static_argnums=0)
def states(model, params, batch):
    def run(model):
        return model.bert(*(batch[name] for name in model.INPUTS), deterministic=True)[0]

    return model.apply({"params": params}, method=run)


@pytest.mark.parametrize(
    ("expansion", "length"), [("masked", 6), ("masked", 15), ("attended", 6), ("attended", 15)]
)
def test_queries_are_expanded_by_masks(expansion, length):
    """The state at a [MASK] is that of a text with this [MASK] alone, unless all see all."""
    options = {"width": 8, "expansion": expansion, "query_length": LENGTH, "mask_id": MASK_ID}
    model = MultiVectorModel(CONFIG, **options, skip_ids=(7,))
    params = random_params(model, seed=1)
    lengths = [length, 4, 1]
    batch = rows(lengths, length)
    query = run(model.for_queries(), params, batch)
    found, is_vector = query["embeddings"], np.asarray(query["is_vector"])
    assert is_vector.sum(axis=1).tolist() == [max(n, LENGTH) for n in lengths]
    assert found.shape == (3, max(length, LENGTH), 8)
    plain = MultiVectorModel(CONFIG, width=8)
    for i, n in enumerate(lengths):
        ids = np.full((1, max(n, LENGTH)), MASK_ID, np.int32)
        ids[:, :n] = batch["input_ids"][i, :n]
        inputs = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": np.ones_like(ids)}
        if expansion == "masked":
            inputs["attention_mask"][:, n:] = 0
        # The [MASK]s that no other token sees are padding for a document.
        hidden = states(plain, params, inputs)
        expected = hidden[0] @ params["projection"]["kernel"]
        expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
        np.testing.assert_allclose(found[i, : len(expected)], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kernels", "length", "changes"),
    [
        (gpu_attention, 32, {}),
        (tpu_attention, 128, {}),
        (gpu_attention, 128, LOCAL),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (gpu_attention, 512, {}),
                (tpu_attention, 512, {}),
                (gpu_attention, 512, LOCAL),
            ]
        ),
    ],
)
def test_the_added_masks_have_the_states_of_plain_attention(monkeypatch, kernels, length, changes):
    """The kernels run as plain JAX. The GPU kernel computes nothing at padding, by design.

    Rows that are too short for the kernel have the same states in any case.
    """
    kernel = mock.Mock(side_effect=functools.partial(kernels.fused_attention, interpret=True))
    monkeypatch.setattr(kernels, "fused_attention", kernel)
    plain = BertConfig(
        50,
        128,
        2,
        4,
        16,
        max_position_embeddings=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        dtype=jnp.bfloat16,
        **changes,
    )
    options = {"width": 8, "expansion": "masked", "query_length": length, "mask_id": MASK_ID}
    expected_model = MultiVectorModel(plain, **options).for_queries()
    params = random_params(expected_model, seed=1, scale=0.1)
    batch = rows([12, 5], 16)
    expected = run(expected_model, params, batch)["embeddings"]
    platform = kernels.__name__.rpartition(".")[2].removesuffix("_attention")
    model = MultiVectorModel(dataclasses.replace(plain, fused_attention=platform), **options)
    np.testing.assert_array_equal(run(model.for_queries(), params, batch)["embeddings"], expected)
    assert not kernel.called
    # A model of documents of this length has the kernel, whose states are wrong for a query.
    as_document = run(model.clone(is_query=True), params, batch)["embeddings"]
    assert kernel.called == (length >= 128)
    difference = np.abs(np.asarray(as_document - expected)).max(axis=-1)
    is_text = np.arange(length) < np.array([[12], [5]])
    assert difference[is_text].max() < 0.1
    assert (difference[~is_text].max() > 0.3) == (kernels is gpu_attention and length >= 128)


def test_only_an_expanded_query_needs_plain_attention():
    config = dataclasses.replace(CONFIG, fused_attention="gpu")
    for expansion, expected in (("none", "gpu"), ("masked", ""), ("attended", "")):
        model = MultiVectorModel(config, expansion=expansion)
        assert model.for_queries().config.fused_attention == expected
        assert model.config.fused_attention == "gpu"
