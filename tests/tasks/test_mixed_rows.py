"""Training rows of several data sets: which set and which rows a step has."""

from collections import Counter

import pytest

from bert_jax.base.errors import UserError
from bert_jax.finetuning.batches import numbers_of_step
from bert_jax.tasks.mixed_rows import MixedRows


class Numbered:
    """Rows that are their numbers, after the number of their set."""

    unknown_fraction = 0.0

    def __init__(self, number, size):
        self.number, self.size = number, size

    def __len__(self):
        return self.size

    def draw(self, indices, seed, step):
        return {"rows": [(self.number, int(index)) for index in indices]}

    def fingerprint(self):
        return f"{self.number} {self.size}"


def steps_of(rows, steps, batch_size, seed=0):
    return [rows.take(numbers_of_step(rows, step, batch_size, seed))["rows"] for step in steps]


def test_each_batch_is_of_one_set_and_each_set_has_all_its_rows_in_turn():
    rows = MixedRows({"a": Numbered(0, 24), "b": Numbered(1, 50)}, {})
    assert len(rows) == 74 and rows.num_batches(8).tolist() == [3, 6]
    batches = steps_of(rows, range(36), 8)
    chosen = [{number for number, _ in batch} for batch in batches]
    assert all(len(numbers) == 1 for numbers in chosen)
    # A pass has three batches of one set and six of the other, in an order of its own.
    passes = [chosen[first : first + 9] for first in range(0, 36, 9)]
    assert all(Counter(map(min, order)) == {0: 3, 1: 6} for order in passes)
    assert passes[0] != passes[1]
    # A set goes on where it was in the pass before.
    for number, size in ((0, 24), (1, 50)):
        read = [index for batch in batches for own, index in batch if own == number]
        assert max(Counter(read).values()) - min(Counter(read).values()) <= 1
        assert len(set(read)) == size
    # A step is the same whether or not others were asked for.
    assert steps_of(rows, [17], 8) == batches[17:18]
    assert steps_of(rows, range(9), 8, seed=1) != batches[:9]


def test_weights_replace_the_numbers_of_rows():
    sets = {"a": Numbered(0, 20), "b": Numbered(1, 180)}
    rows = MixedRows(sets, {"a": 3.0, "b": 1.0})
    assert rows.num_batches(10).tolist() == [15, 5]
    # A set whose share is small has a batch in each pass all the same.
    assert MixedRows(sets, {"a": 1.0, "b": 999.0}).num_batches(10).tolist() == [1, 20]
    with pytest.raises(UserError, match="the data set a has 20 rows for training; a batch is of"):
        rows.num_batches(32)
    assert rows.fingerprint() != MixedRows({"a": Numbered(0, 20)}, {}).fingerprint()
