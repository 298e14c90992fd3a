"""The training rows of several data sets, of which each batch is from one."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.tasks.token_rows import TokenRows


class MixedRows:
    """The rows of several data sets, one after another; see `TokenRows`.

    Args:
      sets: The rows of each data set by its name.
      weights: How many batches come from each; by default in proportion to its rows.

    Attributes:
      starts: The number of the first row of each set, and that of all rows at the end.
    """

    PER_TOKEN = TokenRows.PER_TOKEN

    def __init__(self, sets: Mapping[str, Any], weights: Mapping[str, float]):
        self.sets, self._weights = sets, weights
        self.starts = np.cumsum([0, *map(len, sets.values())])
        wanted = np.array([weights.get(name, len(rows)) for name, rows in sets.items()])
        self._shares = wanted / wanted.sum()

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def unknown_fraction(self) -> float:
        return max(rows.unknown_fraction for rows in self.sets.values())

    @property
    def num_examples(self) -> int:
        return len(self)

    def mapped(self, function: Callable[[Any], Any]) -> Self:
        sets = {name: function(rows) for name, rows in self.sets.items()}
        return type(self)(sets, self._weights)

    def described(self) -> str:
        found = zip(self.sets.items(), self._shares, strict=True)
        return "\n".join(
            f"{name}: {len(rows):,} rows, {share:.1%} of the batches; {rows.described()}"
            for (name, rows), share in found
        )

    def truncated(self) -> str:
        texts = ((name, rows.truncated()) for name, rows in self.sets.items())
        return "; ".join(f"{name}: {text}" for name, text in texts if text)

    def num_batches(self, batch_size: int) -> np.ndarray:
        """Returns how many batches of each set are in a pass over as many rows as all sets have."""
        sizes = np.diff(self.starts)
        for name, size in zip(self.sets, sizes, strict=True):
            if size < batch_size:
                raise UserError(
                    f"config.train.batch_size is {batch_size}, but the data set {name} has {size} "
                    "rows for training; a batch is of one data set"
                )
        wanted = self._shares * (len(self) / batch_size)
        return np.maximum(np.rint(wanted).astype(np.int64), 1)

    def draw(self, indices: np.ndarray, seed: int, step: int) -> dict[str, np.ndarray]:
        """Returns some rows of one set."""
        chosen = int(np.searchsorted(self.starts, indices[0], side="right")) - 1
        rows = list(self.sets.values())[chosen]
        return rows.draw(indices - self.starts[chosen], seed, step)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        return self.draw(indices, 0, 0)

    def fingerprint(self) -> str:
        prints = {name: rows.fingerprint() for name, rows in self.sets.items()}
        return hashlib.sha256(repr(prints).encode()).hexdigest()
