"""The corruption that changes nothing, for objectives such as next-token prediction."""

from typing import ClassVar

import numpy as np

from bert_jax.base.batch import BatchFields


class NoCorruption:
    """A corruption that changes nothing."""

    fields: ClassVar[BatchFields] = {}

    def __init__(self, tokenizer, spec, store):
        pass

    def corrupt(
        self, batch: dict[str, np.ndarray], key: np.ndarray, first_example: int
    ) -> dict[str, np.ndarray]:
        """Returns no arrays."""
        return {}
