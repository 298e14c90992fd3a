"""A hundred steps of ELECTRA against PyTorch; see benchmarks/golden/electra_training.py."""

import jax
import numpy as np
import pytest

from bert_jax.interop.families.electra import ELECTRA
from bert_jax.interop.names import foreign_names
from bert_jax.interop.weights import expected_shapes, unflatten
from bert_jax.objectives.terms.electra import ReplacedToken
from bert_jax.objectives.weighted import WeightedTerms
from bert_jax.pretraining.build import make_trainer
from bert_jax.training.step import make_train_step
from tests.golden.inputs import read_golden, section
from tests.golden.training_batches import TRAINING, training_batch
from tests.objectives.common import GivenSamples
from tests.small import small_config
from tests.training.parity import CONFIG

OVERRIDES = {
    "objective.terms": ("generator", "replaced_token"),
    "objective.weights": (1.0, 50.0),
    "model.embedding_size": 24,
    "model.generator_size": 0.5,
    "data.rows": "halves",
    "data.corruption": "electra",
    "schedule.shape": "product",
    "schedule.peak_learning_rate": 5e-4,
}


def initial_weights(config, golden):
    """Returns the golden file's weights of both networks under bert_jax's names."""
    shapes = expected_shapes(config, OVERRIDES["objective.terms"])
    names = foreign_names(ELECTRA.names, "huggingface", config.num_hidden_layers)
    weights = {}
    for key, shape in shapes.items():
        if key.startswith("generator/"):
            rest = key.removeprefix("generator/")
            theirs, part = names[rest if rest.startswith("mlm/") else f"bert/{rest}"], "generator"
        else:
            theirs, part = names[key], "discriminator"
        weights[key] = theirs.restore(golden[f"initial/{part}/{theirs.name}"], shape)
    assert len(weights) == len(section(golden, "initial"))
    return weights


@pytest.mark.slow
def test_training_matches_pytorch_with_the_same_samples():
    golden = read_golden("training_electra")
    trainer = make_trainer(small_config(**CONFIG | OVERRIDES), jax.devices()[:1])
    objective = WeightedTerms((GivenSamples(), ReplacedToken()), (1.0, 50.0))
    model = trainer.model.clone(terms=objective.terms)
    step = jax.jit(make_train_step(model, trainer.optimizer, lambda _: 0.0, objective, seed=0))
    weights = initial_weights(trainer.model_config, golden)
    state, losses = trainer.state_of(unflatten(weights, trainer.model_config)), []
    for n in range(TRAINING["num_steps"]):
        state, metrics = step(state, training_batch(n) | {"samples": golden["samples"][n]}, {})
        losses.append([metrics["mlm_loss"], metrics["rtd_loss"]])
    expected = golden["losses"]
    assert (expected[-10:].mean(axis=0) < expected[:10].mean(axis=0) - [1, 0.1]).all()
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-3)
