"""Selects the rows of each global batch that a host reads."""

from collections.abc import Sequence

import numpy as np


class HostRows:
    """The rows of a global batch that belong to some of its equal parts.

    Args:
      batch_size: The rows of a global batch, a multiple of `num_shards`.
      shards: Ascending numbers of the parts; they need not be adjacent.
      num_shards: The number of parts that the batch is cut into.

    Attributes:
      row_R: int64 [R], the numbers of the rows within the global batch, in the host's order.
      runs: The same rows as ranges (first, stop) of consecutive rows.
    """

    def __init__(self, batch_size: int, shards: Sequence[int], num_shards: int):
        size = batch_size // num_shards
        self.row_R = np.concatenate([np.arange(s * size, (s + 1) * size) for s in shards])
        breaks = np.flatnonzero(np.diff(self.row_R) > 1) + 1
        self.runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(self.row_R, breaks)]
