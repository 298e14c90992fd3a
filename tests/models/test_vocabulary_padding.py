"""The rows that pad the vocabulary to a multiple of 128 have no effect."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import BertConfig
from bert_jax.objectives.terms.masked_lm import MaskedLM
from tests.models.common import pretraining_model
from tests.small import flat, random_batch, random_params

TABLE, BIAS = "bert/embeddings/word_embeddings", "mlm/output_bias"
CONFIG = BertConfig(98, 24, 1, 4, 40, max_position_embeddings=32)
BATCH = random_batch(0, batch_size=3)


def test_padding_has_no_probability_no_gradient_and_no_influence():
    # The padding is random here; in a model it is zero.
    # The largest finite number of bfloat16 is smaller than the largest of float32.
    model = pretraining_model(dataclasses.replace(CONFIG, dtype=jnp.bfloat16))
    params = random_params(model, seed=1)

    def loss(params):
        logits_BxMxW = model.apply({"params": params}, BATCH, deterministic=True)["mlm"]
        return MaskedLM().sums(logits_BxMxW, BATCH)["mlm_loss"][0], logits_BxMxW

    (value, logits_BxMxW), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert logits_BxMxW.shape == (3, 4, 128) and logits_BxMxW[..., 98:].max() < -1e38
    probabilities = np.asarray(jax.nn.softmax(logits_BxMxW))
    assert not probabilities[..., 98:].any() and np.isfinite(probabilities).all()
    alone = MaskedLM().sums(logits_BxMxW[..., :98], BATCH)
    np.testing.assert_allclose(value, alone["mlm_loss"][0], rtol=1e-6)
    gradient = flat(gradient)
    for name in (TABLE, BIAS):
        assert not gradient[name][98:].any() and gradient[name][:98].any(), name
