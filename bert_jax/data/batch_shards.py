"""Which rows of each global batch a host reads."""

from collections.abc import Sequence

import numpy as np


class HostRows:
    """The rows of a global batch that belong to some of its equal parts.

    Args:
      batch_size: The rows of a global batch, a multiple of `num_shards`.
      shards: Ascending numbers of the parts; they need not be neighbours.
      num_shards: The number of parts that the batch is cut into.

    Attributes:
      row_R: int64 [R], the rows, numbered within the global batch, in the order in which the
        host holds them.
      runs: The same rows as (first, stop) of consecutive ones.
    """

    def __init__(self, batch_size: int, shards: Sequence[int], num_shards: int):
        size = batch_size // num_shards
        self.row_R = np.concatenate([np.arange(s * size, (s + 1) * size) for s in shards])
        breaks = np.flatnonzero(np.diff(self.row_R) > 1) + 1
        self.runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(self.row_R, breaks)]
