"""The rows that fill the vocabulary up to a multiple of 128 are as if they were not there."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import BertConfig, BertForPreTraining
from bert_jax.objectives.mlm import mlm_sums
from bert_jax.training.trainer import Trainer
from tests.small import flat, random_batch, randomized, small_config

TABLE, BIAS = "bert/embeddings/word_embeddings", "mlm/output_bias"
CONFIG = BertConfig(98, 24, 1, 4, 40, max_position_embeddings=32)
BATCH = random_batch(0, batch_size=3)
ARGUMENTS = ("input_ids", "token_type_ids", "attention_mask", "masked_lm_positions")


@pytest.mark.parametrize(
    ("vocab_size", "rows"), [(1, 128), (127, 128), (128, 128), (129, 256), (30522, 30592)]
)
def test_rows_are_the_next_multiple_of_128(vocab_size, rows):
    config = dataclasses.replace(CONFIG, vocab_size=vocab_size)
    assert config.padded_vocab_size == rows
    assert config.num_padding_parameters == (rows - vocab_size) * 25


@pytest.fixture(scope="module")
def params():
    """Random everywhere, in the padding too: worse than it ever is."""
    trainer = Trainer.from_config(small_config(**{"model.num_hidden_layers": 1}), jax.devices()[:1])
    return randomized(jax.device_get(trainer.init_state().params), seed=1)


def apply(params, dtype):
    model = BertForPreTraining(dataclasses.replace(CONFIG, dtype=dtype))
    inputs = (BATCH[name] for name in ARGUMENTS)
    return model.apply({"params": params}, *inputs, deterministic=True)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_probability_no_gradient_and_no_influence(params, dtype):
    def loss(params):
        output = apply(params, dtype)
        sums = mlm_sums(output.mlm_logits_BxMxW, BATCH["masked_lm_ids"], BATCH["masked_lm_weights"])
        return sums["loss"], output

    (value, output), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    probabilities = np.asarray(jax.nn.softmax(output.mlm_logits_BxMxW))
    assert probabilities.shape[-1] == 128
    assert not probabilities[..., 98:].any() and np.isfinite(probabilities).all()
    assert np.asarray(output.mlm_logits_BxMxW)[..., 98:].max() < -1e38
    assert output.mlm_logits_BxMxV.shape == (3, 4, 98)
    np.testing.assert_array_equal(output.mlm_logits_BxMxV, output.mlm_logits_BxMxW[..., :98])
    # What the loss would be, were there only the vocabulary.
    alone = mlm_sums(output.mlm_logits_BxMxV, BATCH["masked_lm_ids"], BATCH["masked_lm_weights"])
    np.testing.assert_allclose(value, alone["loss"], rtol=1e-6)
    gradient = flat(gradient)
    for name in (TABLE, BIAS):
        assert not gradient[name][98:].any() and gradient[name][:98].any(), name


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_the_padding_stays_zero_in_training(optimizer):
    overrides = {"model.num_hidden_layers": 1, "optimizer.name": optimizer}
    trainer = Trainer.from_config(small_config(**overrides), jax.devices()[:1])
    first = state = trainer.init_state()
    first = flat(jax.device_get(first.params))
    for step in range(3):
        state, metrics = trainer.train_step(state, random_batch(step))
    values = flat(state)
    padded = [name for name in values if name.endswith((TABLE, BIAS))]
    assert len(padded) == 6
    for name in padded:
        assert values[name].shape[0] == 128 and not values[name][98:].any(), name
        assert values[name][:98].any(), name
    assert not np.array_equal(values[f"params/{TABLE}"], first[TABLE])
    assert np.isfinite(float(metrics["loss"]))
    assert trainer.num_parameters() == sum(x.size for x in first.values()) - 30 * 25


def test_the_real_rows_start_as_they_would_without_padding():
    def table(vocab_size):
        config = dataclasses.replace(CONFIG, vocab_size=vocab_size)
        one = jnp.zeros((1, 1), jnp.int32)
        init = jax.jit(
            lambda: BertForPreTraining(config).init(
                jax.random.key(0), one, one, one, one, deterministic=True
            )
        )
        return np.asarray(init()["params"]["bert"]["embeddings"]["word_embeddings"].value)

    np.testing.assert_array_equal(table(98)[:98], table(128)[:98])
