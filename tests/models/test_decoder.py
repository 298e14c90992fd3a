"""The decoder: what each position sees, and rematerialization."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import make_terms
from tests.models.common import PLAIN
from tests.small import random_params

TERMS = make_terms(("denoising",))
# A decoder that is not as deep as the encoder.
SMALL = dataclasses.replace(PLAIN, num_hidden_layers=1, type_vocab_size=0, num_decoder_layers=2)
MODEL = PreTrainingModel(SMALL, TERMS)


@pytest.fixture(scope="module")
def params():
    return random_params(MODEL, seed=1, scale=0.1)


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(2)

    def mask(length, *lengths):
        return (np.arange(length) < np.array(lengths)[:, None]).astype(np.int32)

    return {
        "input_ids": rng.integers(0, 101, (2, 13)).astype(np.int32),
        "token_type_ids": np.zeros((2, 13), np.int32),
        "attention_mask": mask(13, 13, 7),
        "decoder_input_ids": rng.integers(0, 101, (2, 11)).astype(np.int32),
        "decoder_attention_mask": mask(11, 5, 11),
        "labels": rng.integers(0, 101, (2, 11)).astype(np.int32),
    }


@jax.jit
def states(params, batch):
    return MODEL.apply({"params": params}, batch, deterministic=True)["denoising"].hidden_BxLxE


def test_a_position_sees_earlier_tokens_and_the_real_source(params, batch):
    before = states(params, batch)
    tokens, source = (np.array(batch[name]) for name in ("decoder_input_ids", "input_ids"))
    tokens[1, 6] += 1
    after = states(params, batch | {"decoder_input_ids": tokens})
    changed_BxT = np.any(before != after, axis=-1)
    assert changed_BxT.tolist() == [[False] * 11, [False] * 6 + [True] * 5]
    source[:, 7] += 1  # This is padding in the second row.
    changed_BxT = np.any(before != states(params, batch | {"input_ids": source}), axis=-1)
    assert changed_BxT.tolist() == [[True] * 11, [False] * 11]


@pytest.mark.slow
def test_a_rematerialized_decoder_computes_the_same(params, batch):
    one_layer = {"num_hidden_layers": 1, "num_decoder_layers": 1}

    def loss_and_gradients(config):
        model = PreTrainingModel(dataclasses.replace(config, **one_layer), TERMS)

        def loss(params):
            outputs = model.apply({"params": params}, batch, deterministic=True)
            return TERMS[0].sums(outputs["denoising"], batch)["denoising_loss"][0]

        return jax.jit(jax.value_and_grad(loss))(params)

    jax.tree.map(
        lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5),
        loss_and_gradients(SMALL),
        loss_and_gradients(dataclasses.replace(SMALL, remat="full")),
    )
