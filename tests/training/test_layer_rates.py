"""Learning rates that differ between layers, and frozen layers."""

import functools

import jax
import numpy as np
import pytest

from bert_jax.models.task_models import make_task_model
from bert_jax.objectives.task_losses import Labels
from bert_jax.training.layer_rates import LayerRates
from bert_jax.training.stages import resolve_stages
from bert_jax.training.trainer import Trainer
from tests.small import flat, random_batch, small_config


def make_trainer(rates, scan_layers=False, features=()):
    config = small_config(scan_layers=scan_layers)
    return Trainer.create(
        config,
        lambda model_config: make_task_model("sequence_classification", 2, model_config, features),
        Labels(),
        resolve_stages(config),
        flops_per_sequence=lambda model_config, stage: 0.0,
        rates=rates,
        devices=jax.devices()[:1],
    )


def batch(seed):
    rows = random_batch(seed)
    rows["labels"] = rows.pop("next_sentence_labels")
    return {name: x for name, x in rows.items() if not name.startswith("masked")}


def test_factors_fall_from_the_head_to_the_embeddings():
    params = make_trainer(None).abstract_state().params
    factors = flat(LayerRates(2, decay=0.5).factors(params))
    expected = {
        "bert/embeddings/word_embeddings": 0.125,
        "bert/embeddings/layer_norm/scale": 0.125,
        "bert/encoder/layer_0/attention/query_kernel": 0.25,
        "bert/encoder/layer_1/output_layer_norm/bias": 0.5,
        "bert/pooler/dense/kernel": 1.0,
        "classifier/dense/bias": 1.0,
    }
    for name, factor in expected.items():
        assert factors[name] == factor, name
    # In ELECTRA, the top block has the square of the factor.
    offset = flat(LayerRates(2, decay=0.5, decay_offset=1).factors(params))
    for name, factor in expected.items():
        assert offset[name] == (factor / 2 if factor < 1 else 1), name
    frozen = flat(LayerRates(2, frozen_layers=1).factors(params))
    assert {n for n, f in frozen.items() if not f.all()} == {
        n for n in frozen if n.startswith(("bert/embeddings/", "bert/encoder/layer_0/"))
    }
    only_embeddings = flat(LayerRates(2, frozen_layers=0).factors(params))
    assert {n.split("/")[1] for n, f in only_embeddings.items() if not f} == {"embeddings"}


def test_shared_layers_and_the_projection_of_the_embeddings():
    params = {
        "bert": {
            "embeddings": {"word_embeddings": np.zeros(1)},
            "embeddings_project": {"kernel": np.zeros(1)},
            "encoder": {"layer_0": {"output": {"kernel": np.zeros(1)}}},
        }
    }
    factors = flat(LayerRates(1, decay=0.5).factors(params))
    assert factors["bert/encoder/layer_0/output/kernel"] == 0.5
    assert factors["bert/embeddings_project/kernel"] == 0.25
    assert factors["bert/embeddings/word_embeddings"] == 0.25


@functools.cache
def steps(rates, scan_layers=False, features=()):
    """Returns the parameters before and after two steps, and the metrics of the first."""
    trainer = make_trainer(rates, scan_layers, features)
    before = trainer.init_state()
    kept = flat(jax.tree.map(np.asarray, before.params))
    state, metrics = trainer.train_step(before, batch(0))
    # The learning rate of step 0 is 0.
    state, _ = trainer.train_step(state, batch(1))
    return kept, flat(jax.tree.map(np.asarray, state.params)), metrics


@pytest.mark.parametrize("scan_layers", [pytest.param(False, marks=pytest.mark.slow), True])
def test_frozen_layers_keep_every_bit(scan_layers):
    before, after, _ = steps(LayerRates(2, frozen_layers=1), scan_layers=scan_layers)
    for name, value in before.items():
        if name.startswith("bert/encoder/layers/"):
            # The layers are stacked; the first is frozen, the second is not.
            np.testing.assert_array_equal(after[name][0], value[0], err_msg=name)
            assert not np.array_equal(after[name][1], value[1]), name
        else:
            frozen = name.startswith(("bert/embeddings/", "bert/encoder/layer_0/"))
            assert np.array_equal(after[name], value) == frozen, name


def test_frozen_gradients_do_not_count_in_the_norm():
    _, _, all_of_it = steps(None, scan_layers=True)
    _, _, part = steps(LayerRates(2, frozen_layers=1), scan_layers=True)
    assert 0 < float(part["grad_norm"]) < float(all_of_it["grad_norm"])


def test_feature_based_mode_trains_only_the_head():
    before, after, _ = steps(LayerRates(2, frozen_encoder=True), features=(-1, -2))
    changed = {name for name, value in before.items() if not np.array_equal(after[name], value)}
    assert changed == {"classifier/dense/kernel", "classifier/dense/bias"}
    assert before["classifier/dense/kernel"].shape == (48, 2)


@pytest.mark.slow
def test_smaller_rates_move_the_lower_layers_less():
    """Adam's first steps are proportional to the rate."""
    before, full, _ = steps(None)
    _, decayed, _ = steps(LayerRates(2, decay=0.1))
    for name, factor in (
        ("bert/embeddings/position_embeddings", 1e-3),
        ("bert/encoder/layer_0/intermediate/kernel", 1e-2),
        ("bert/encoder/layer_1/intermediate/kernel", 1e-1),
        ("classifier/dense/kernel", 1),
    ):
        moved = np.abs(decayed[name] - before[name]).max()
        expected = factor * np.abs(full[name] - before[name]).max()
        # float32 rounds the small steps of the position table.
        assert moved == pytest.approx(expected, rel=0.05), name
