"""Which rows of each global batch a host reads."""

from collections.abc import Sequence

import numpy as np

from bert_jax.errors import UserError


class HostRows:
    """The rows of some of the equal parts that each global batch is cut into.

    Args:
      batch_size: Rows of a global batch.
      shards: Ascending numbers of the parts; they need not be neighbours.
      num_shards: In how many parts the batch is cut.

    Attributes:
      row_R: int64 [R], the rows, numbered in the global batch, in the order in which the
        host holds them.
      runs: The same rows as (first, stop) of consecutive ones.

    Raises:
      UserError: the batch does not divide.
    """

    def __init__(self, batch_size: int, shards: Sequence[int], num_shards: int):
        if batch_size % num_shards:
            raise UserError(
                f"the batch of {batch_size} sequences does not divide over {num_shards} data "
                f"shards; a multiple of {num_shards} would"
            )
        size = batch_size // num_shards
        self.row_R = np.concatenate([np.arange(s * size, (s + 1) * size) for s in shards])
        self.runs: list[tuple[int, int]] = []
        for shard in shards:
            first, stop = shard * size, (shard + 1) * size
            if self.runs and self.runs[-1][1] == first:
                first = self.runs.pop()[0]
            self.runs.append((first, stop))
