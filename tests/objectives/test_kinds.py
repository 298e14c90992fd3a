"""The losses of sparse and of several vectors with their models: chunks and devices."""

import dataclasses
import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import BertConfig
from bert_jax.models.multi_vector_model import MultiVectorModel
from bert_jax.models.sparse_model import SparseModel
from bert_jax.objectives import similarity
from bert_jax.objectives.contrastive import Contrastive
from bert_jax.objectives.flops import encoder_flops
from bert_jax.objectives.sparse import SparseContrastive
from bert_jax.training.state import init_params
from tests.objectives.test_contrastive import ROWS, make_batch, on_eight_devices

# 128 rows of the table.
CONFIG = BertConfig(
    vocab_size=120,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=8,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    dtype=jnp.float32,
)
MODELS = {
    # Queries of 6 tokens, with two or more [MASK]s.
    "multi_vector": MultiVectorModel(CONFIG, 8, "masked", 8, mask_id=4, skip_ids=(7,)),
    "sparse": SparseModel(CONFIG),
    "static_queries": SparseModel(CONFIG, static_queries=True, special_ids=(5,)),
}


def make_model(name):
    model = MODELS[name]
    # Larger values: at the initial ones, all vectors are alike.
    return model, jax.tree.map(lambda x: 4 * x, nn.unbox(init_params(model, 0)))


def make_objective(model, num_chunks):
    given = "mnr", {"scale": 2.0}
    if isinstance(model, MultiVectorModel):
        return Contrastive(*given, "mean_maxsim", num_chunks=num_chunks)
    factors = {"query_flops": 0.1, "document_flops": 0.2}
    return SparseContrastive(*given, **factors, num_chunks=num_chunks)


def gradients(model, params, batch, num_chunks):
    objective = make_objective(model, num_chunks)
    rngs = {"dropout": jax.random.key(0), "sample": jax.random.key(1)}
    return jax.value_and_grad(lambda p: objective.loss(model, p, batch, rngs, 1, {}, 0)[0])(params)


def assert_same(found, expected):
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-6)
    for ours, theirs in zip(*map(jax.tree.leaves, (found[1], expected[1])), strict=True):
        # The gradient of a key's bias is only rounding error.
        scale = max(1, np.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_chunks_and_devices_change_nothing(name, tmp_path, monkeypatch):
    """The loss is the same in 4 and 16 chunks, and in 2 chunks on eight devices.

    Blocks of documents are small. Devices exchange the vectors of tokens, but no sparse vectors.
    """
    model, params = make_model(name)
    step = jax.jit(gradients, static_argnums=(0, 3))
    expected = step(model, params, make_batch(), 1)
    monkeypatch.setattr(similarity, "_BLOCK_BYTES", 2**12)
    for num_chunks in (4, ROWS):
        assert_same(step(model, params, make_batch(), num_chunks), expected)
    found = on_eight_devices(name, tmp_path)
    assert [*found] == ["dp", "fsdp"]
    for result in found.values():
        assert_same(result, expected)
    text = (tmp_path / "dp.hlo").read_text()
    gathered = [
        tuple(map(int, re.findall(r"\d+", shape)))
        for shape in re.findall(r"= \w+\[([\d,]*)\]\S* all-gather\(", text)
    ]
    if name == "multi_vector":
        # The vectors of all documents, once.
        assert sorted(map(math.prod, gathered))[-2:] == [ROWS * 3 * 6, ROWS * 3 * 6 * 8]
    else:
        assert gathered and not any(128 in shape for shape in gathered)


def test_flops_count_the_heads():
    """The count is that of the forward and the backward pass, without recomputation."""
    config, query_length = MODELS["sparse"].config, MODELS["multi_vector"].query_length

    def of_text(length, products):
        return encoder_flops(config, length, None) + 2 * length * products

    document = of_text(10, 16 * 16 + 16 * 120)
    for name, texts in (
        ("sparse", [document] * 3),
        ("static_queries", [0, document, document]),
        ("multi_vector", [of_text(query_length, 16 * 8), *[of_text(10, 16 * 8)] * 2]),
    ):
        objective = dataclasses.replace(make_objective(MODELS[name], 1), num_texts=len(texts))
        assert objective.flops(MODELS[name], 10, 0) == pytest.approx(np.mean(texts) * 3)
