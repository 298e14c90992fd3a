"""The examples of each step, and predictions for all rows."""

import jax
import numpy as np
import pytest

from bert_jax.finetuning.batches import cut, predict, rows_of_step, training_batches
from bert_jax.heads import load_head
from bert_jax.objectives.task_losses import Labels
from bert_jax.tasks.ner import TaggedRows
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.training.loop import DivergedError
from bert_jax.training.stages import resolve_stages
from bert_jax.training.trainer import Trainer, make_layout, make_model_config
from tests.small import small_config


class FakeRows:
    """Rows of which row i has i + 1 tokens with id i; records the arguments of `take`."""

    PER_TOKEN = TokenRows.PER_TOKEN

    def __init__(self, size):
        self.size, self.taken = size, []

    def __len__(self):
        return self.size

    @property
    def parts(self):
        return (range(self.size),)

    def compact(self, outputs, vocab_size):
        return outputs

    def of_examples(self, outputs):
        return outputs

    def draw(self, indices, seed, step):
        return self.take(indices)

    def take(self, indices):
        self.taken.append(list(indices))
        mask = (np.arange(16) <= indices[:, None]).astype(np.int32)
        return {
            "input_ids": mask * indices[:, None].astype(np.int32),
            "token_type_ids": np.zeros_like(mask),
            "attention_mask": mask,
            "labels": (indices % 2).astype(np.int32),
        }


def stream(num_steps, batch_size, num_rows, seed):
    """Returns the rows of all steps, [steps, batch]."""
    return np.stack([rows_of_step(step, num_rows, batch_size, seed) for step in range(num_steps)])


def test_every_epoch_has_every_row_once_in_its_own_order():
    size, rows = 7, 45
    epochs = stream(27, size, rows, 3).reshape(-1)[: 4 * rows].reshape(4, rows)
    for epoch in epochs:
        assert sorted(epoch) == list(range(rows))
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert not np.array_equal(stream(7, size, rows, 4).reshape(-1)[:rows], epochs[0])


def test_batch_may_be_larger_than_the_data():
    batch = stream(2, 16, 5, 0)[1]
    assert len(batch) == 16 and set(batch) == set(range(5))


def make_trainer(head, num_labels):
    config = small_config(**{"model.num_hidden_layers": 1})
    layout = make_layout(config, jax.devices()[:1])
    return Trainer.create(
        config,
        layout,
        load_head(head).make_model(make_model_config(config, layout), num_labels),
        Labels(),
        resolve_stages(config),
    )


@pytest.fixture(scope="module")
def trainer():
    return make_trainer("sequence_classification", 2)


def test_batches_resume_at_any_step(trainer):
    rows = FakeRows(11)
    whole = list(training_batches(rows, trainer, range(6), batch_size=4))
    rest = list(training_batches(rows, trainer, range(4, 6), batch_size=4))
    assert len(whole) == 6 and len(rest) == 2
    for one, other in zip(whole[4:], rest, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_predictions_cover_every_row_in_order_at_any_batch_size(trainer):
    params = trainer.init_state().params
    rows = FakeRows(11)
    whole = predict(trainer, params, rows, batch_size=11)["logits"]
    assert whole.shape == (11, 2) and len(np.unique(whole[:, 0])) == 11
    parts = predict(trainer, params, rows, batch_size=4)["logits"]
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-6)
    assert rows.taken[-1] == [8, 9, 10, 10]
    assert predict(trainer, params, rows, batch_size=4, stop=lambda: True) is None
    cut_ones = predict(trainer, params, rows, batch_size=4, length_multiple=4)["logits"]
    np.testing.assert_allclose(cut_ones, whole, rtol=1e-5, atol=1e-6)


def test_outputs_that_are_not_finite_are_refused(trainer):
    params = jax.tree.map(lambda x: x * np.nan, trainer.init_state().params)
    with pytest.raises(DivergedError, match="the model's logits are not finite"):
        predict(trainer, params, FakeRows(3), batch_size=4)


def test_common_padding_is_cut(trainer):
    rows = FakeRows(11)
    # As many labels as tokens in a row.
    batch = rows.take(np.array([2, 4])) | {"labels": np.zeros((2, 16), np.float32)}
    shapes = {name: array.shape for name, array in cut(batch, rows.PER_TOKEN, 4).items()}
    assert shapes.pop("labels") == (2, 16) and set(shapes.values()) == {(2, 8)}
    of_tags = cut(batch, TaggedRows.PER_TOKEN, 4)
    assert {array.shape for array in of_tags.values()} == {(2, 8)}
    for multiple, length in ((5, 5), (32, 16), (0, 16)):
        assert cut(batch, rows.PER_TOKEN, multiple)["input_ids"].shape == (2, length)
    batches = list(training_batches(rows, trainer, range(6), batch_size=4, length_multiple=2))
    whole = list(training_batches(rows, trainer, range(6), batch_size=4))
    assert len({batch["input_ids"].shape for batch in batches}) > 1
    for one, other in zip(batches, whole, strict=True):
        length = one["input_ids"].shape[1]
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"][:, :length])
        assert not np.any(other["attention_mask"][:, length:])


@pytest.mark.slow
def test_token_outputs_are_padded_to_the_row_length():
    tagger = make_trainer("token_classification", 3)
    params, rows = tagger.init_state().params, FakeRows(11)
    whole = predict(tagger, params, rows, batch_size=4)["logits"]
    short = predict(tagger, params, rows, batch_size=4, length_multiple=4)["logits"]
    assert whole.shape == short.shape == (11, 16, 3)
    real = rows.take(np.arange(11))["attention_mask"] > 0
    np.testing.assert_allclose(short[real], whole[real], rtol=1e-5, atol=1e-6)
    assert np.all(short[:4, 4:] < -1e30), "four rows of at most four tokens"
