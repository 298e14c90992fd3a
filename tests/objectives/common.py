"""What the tests of several terms share."""

import dataclasses

import numpy as np

from bert_jax.base.batch import MASKED_LM_FIELDS, BatchField
from bert_jax.models.heads import NO_PROBABILITY
from bert_jax.objectives.cross_entropy import SLICE_POSITIONS, DecoderInputs
from bert_jax.objectives.terms.electra import Generator


@dataclasses.dataclass(frozen=True)
class GivenSamples(Generator):
    """A generator that takes its samples from the batch."""

    fields = {**MASKED_LM_FIELDS, "samples": BatchField("BM", "int32")}

    def samples(self, model, logits_BxMxW, batch):
        return batch["samples"]


def decoder(width, seed, length=2 * SLICE_POSITIONS + 5):
    """Returns states, a table of 11 real rows and 5 rows of padding, and its bias."""
    rng = np.random.default_rng(seed)
    bias = rng.standard_normal(16).astype(np.float32)
    bias[11:] = NO_PROBABILITY
    hidden = rng.standard_normal((3, length, width)).astype(np.float32)
    return DecoderInputs(hidden, rng.standard_normal((16, width)).astype(np.float32), bias)
