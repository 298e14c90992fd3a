"""Selects the rows of each global batch that a host reads."""

from collections.abc import Sequence

import numpy as np


def host_rows(batch_size: int, shards: Sequence[int], num_shards: int) -> np.ndarray:
    """Returns the rows of a global batch that belong to some of its equal parts, int64 [R].

    Args:
      batch_size: The rows of a global batch, a multiple of `num_shards`.
      shards: Ascending numbers of the parts; they need not be adjacent.
      num_shards: The number of parts that the batch is cut into.
    """
    size = batch_size // num_shards
    return np.concatenate([np.arange(s * size, (s + 1) * size) for s in shards])
