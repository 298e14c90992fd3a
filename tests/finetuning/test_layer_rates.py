"""Learning rates that differ between layers."""

import functools

import jax
import numpy as np
import pytest

from bert_jax.finetuning.layer_rates import layer_factors, scaled_by_layer
from bert_jax.models.task_models import make_task_model
from bert_jax.objectives.task_losses import Labels
from bert_jax.training.stages import resolve_stages
from bert_jax.training.trainer import Trainer, make_layout, make_model_config
from tests.small import flat, random_batch, small_config


def make_trainer(decay):
    config = small_config()
    layout = make_layout(config, jax.devices()[:1])
    return Trainer.create(
        config,
        layout,
        make_task_model("sequence_classification", 2, make_model_config(config, layout)),
        Labels(),
        resolve_stages(config),
        scaling=decay and scaled_by_layer(2, decay),
    )


def batch(seed):
    rows = random_batch(seed)
    rows["labels"] = rows.pop("next_sentence_labels")
    return {name: x for name, x in rows.items() if not name.startswith("masked")}


def test_factors_fall_from_the_head_to_the_embeddings():
    params = make_trainer(None).abstract_state().params
    factors = flat(layer_factors(params, 2, 0.5))
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


def test_shared_layers_the_projection_of_the_embeddings_and_the_last_norm():
    params = {
        "bert": {
            "embeddings": {"word_embeddings": np.zeros(1)},
            "embeddings_project": {"kernel": np.zeros(1)},
            "encoder": {
                "layer_0": {"output": {"kernel": np.zeros(1)}},
                "layer_norm": {"scale": np.zeros(1)},
            },
        }
    }
    factors = flat(layer_factors(params, 1, 0.5))
    assert factors["bert/encoder/layer_0/output/kernel"] == 0.5
    assert factors["bert/encoder/layer_norm/scale"] == 1.0
    assert factors["bert/embeddings_project/kernel"] == 0.25
    assert factors["bert/embeddings/word_embeddings"] == 0.25


@functools.cache
def steps(decay):
    """Returns the parameters before and after two steps."""
    trainer = make_trainer(decay)
    before = trainer.init_state()
    kept = flat(jax.tree.map(np.asarray, before.params))
    state, _ = trainer.train_step(before, batch(0))
    # The learning rate of step 0 is 0.
    state, _ = trainer.train_step(state, batch(1))
    return kept, flat(jax.tree.map(np.asarray, state.params))


@pytest.mark.slow
def test_smaller_rates_move_the_lower_layers_less():
    """Adam's first steps are proportional to the rate."""
    before, full = steps(None)
    _, decayed = steps(0.1)
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
