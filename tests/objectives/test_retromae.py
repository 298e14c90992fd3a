"""What the positions of RetroMAE's decoder see, and what they predict."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.terms.retromae import RetroMAE, original_ids, text_weights

LENGTHS = np.array([64, 40])
BATCH = {"attention_mask": (np.arange(64) < LENGTHS[:, None]).astype(np.int32)}


class Model:
    """Stands for the bound model, whose key for samples is fixed."""

    def __init__(self, seed):
        self.seed = seed

    def make_rng(self, name):
        assert name == "sample"
        return jax.random.key(self.seed)


def visible(seed=0):
    return np.asarray(RetroMAE().visible(Model(seed), BATCH))


def test_what_a_position_sees():
    seen = visible()
    for row, length in enumerate(LENGTHS):
        assert not seen[row, :, length:].any(), "padding"
        assert not seen[row].diagonal().any(), "itself"
        assert seen[row, 1:, 0].all() and seen[row, : length - 1, length - 1].all()
        between = ~np.eye(length - 2, dtype=bool)
        hidden = 1 - seen[row, 1 : length - 1, 1 : length - 1][between].mean()
        # Three standard deviations of the mean of at least 1,406 draws.
        assert abs(hidden - 0.5) < 3 * 0.5 / np.sqrt(1406)
    assert (visible() == seen).all() and (visible(seed=1) != seen).any()
    assert (seen[0, :38, 1:39] != seen[1, :38, 1:39]).any(), "each text has sets of its own"


def test_predicted_tokens():
    batch = BATCH | {
        "input_ids": np.arange(128).reshape(2, 64),
        "masked_lm_positions": np.array([[3, 0], [7, 9]]),
        "masked_lm_ids": np.array([[500, 600], [700, 800]]),
        "masked_lm_weights": np.array([[1.0, 0.0], [1.0, 1.0]]),
    }
    expected = batch["input_ids"].copy()
    expected[0, 3], expected[1, 7], expected[1, 9] = 500, 700, 800
    assert (original_ids(batch) == expected).all()
    weights = np.asarray(text_weights(batch))
    assert weights.sum(axis=1).tolist() == [62, 38]
    assert not weights[:, 0].any() and not weights[0, 63] and not weights[1, 39]


def test_a_model_that_rescales_embeddings_by_the_masks():
    config = BertConfig(32, 8, 1, 1, 8, token_dropout=0.12, mask_token_id=4)
    tokens = ("input_ids", "token_type_ids", "attention_mask")
    masks = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    batch = dict.fromkeys(tokens, jnp.ones((2, 16), jnp.int32))
    batch |= dict.fromkeys(masks, jnp.ones((2, 3), jnp.int32))
    model = PreTrainingModel(config, make_terms(("masked_lm", "retromae")))
    keys = {name: jax.random.key(0) for name in ("params", "sample")}
    assert "retromae" in jax.eval_shape(
        lambda: model.init(keys, batch, deterministic=True)["params"]
    )


def test_rows_and_models_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="config.model.rope_theta is 10000.0"):
        RetroMAE().heads(BertConfig(10, 8, 1, 1, 8, rope_theta=1e4))
    with pytest.raises(UserError, match="set config.data.max_pairs_per_row=1"):
        RetroMAE().prepare(None, {"cls_positions": jnp.zeros((2, 2))}, deterministic=True)
