"""A model and batches that are small enough for hundreds of steps in a test."""

import flax.linen as nn
import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax.config import default_config, stage
from bert_jax.training.state import abstract_params

LENGTH, PREDICTIONS = 16, 4


def small_config(**overrides) -> ConfigDict:
    """Returns a valid config whose sizes can be divided over the meshes of the sharding tests."""
    c = default_config()
    c.dtype = "float32"
    c.model.update(
        vocab_size=98,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=32,
    )
    c.train.num_steps = 40
    c.train.batch_size = 16
    c.train.stages = (
        stage(fraction=1.0, max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS),
    )
    c.schedule.peak_learning_rate = 1e-2
    c.schedule.warmup_steps = 5.0
    c.eval.batch_size = 16
    with c.unlocked():
        c.update_from_flattened_dict(overrides)
    return c


def random_batch(
    seed: int,
    *,
    batch_size: int = 16,
    length: int = LENGTH,
    predictions: int = PREDICTIONS,
    vocab_size: int = 98,
) -> dict[str, np.ndarray]:
    """Returns a random batch with padded rows and different numbers of masked tokens."""
    rng = np.random.default_rng(seed)
    real_B = rng.integers(length // 2, length + 1, batch_size)
    masked_B = rng.integers(1, predictions + 1, batch_size)
    masked_B[0] = predictions
    at_L = np.arange(length)
    mask_BxL = (at_L < real_B[:, None]).astype(np.int32)
    positions_BxM = np.stack(
        [np.sort(rng.permutation(np.arange(1, n))[:predictions]) for n in real_B]
    )
    weights_BxM = (np.arange(predictions) < masked_B[:, None]).astype(np.float32)
    return {
        "input_ids": (rng.integers(1, vocab_size, (batch_size, length)) * mask_BxL).astype(
            np.int32
        ),
        "token_type_ids": ((at_L >= real_B[:, None] // 2) * mask_BxL).astype(np.int32),
        "attention_mask": mask_BxL,
        "masked_lm_positions": (positions_BxM * (weights_BxM > 0)).astype(np.int32),
        "masked_lm_ids": (
            rng.integers(1, vocab_size, (batch_size, predictions)) * (weights_BxM > 0)
        ).astype(np.int32),
        "masked_lm_weights": weights_BxM,
        "next_sentence_labels": rng.integers(0, 2, batch_size).astype(np.int32),
    }


def randomized(params, seed: int, scale: float = 0.3):
    """Replaces all values of a tree by random ones, because zeros and ones could hide a mistake."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: (x + scale * rng.standard_normal(x.shape)).astype(np.float32), params
    )


def random_params(model, seed: int, scale: float = 0.3):
    """Returns random parameters of a model: to compile its initializer takes a second or more."""
    return randomized(ones_in_norms(nn.unbox(abstract_params(model))), seed, scale)


def ones_in_norms(shapes):
    """Returns zeros of these shapes, but ones for the scales of LayerNorm."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: np.full(x.shape, path[-1].key == "scale", np.float32), shapes
    )


def flat(tree) -> dict[str, np.ndarray]:
    """Returns a pytree as {"a/b/c": value}."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
        for path, leaf in leaves
    }
