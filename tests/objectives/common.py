import numpy as np

from bert_jax.models.heads import NO_PROBABILITY
from bert_jax.objectives.cross_entropy import SLICE_POSITIONS, DecoderInputs


def decoder(width, seed, length=2 * SLICE_POSITIONS + 5):
    """Returns states, a table of 11 real rows and 5 rows of padding, and its bias."""
    rng = np.random.default_rng(seed)
    bias = rng.standard_normal(16).astype(np.float32)
    bias[11:] = NO_PROBABILITY
    hidden = rng.standard_normal((3, length, width)).astype(np.float32)
    return DecoderInputs(hidden, rng.standard_normal((16, width)).astype(np.float32), bias)
