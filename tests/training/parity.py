"""bert_jax's half of the training runs that tests/golden/record_training.py records."""

import jax
import numpy as np

from bert_jax.interop.families.bert import BERT
from bert_jax.interop.names import foreign_names
from bert_jax.interop.weights import expected_shapes, flatten, unflatten
from bert_jax.pretraining import make_trainer
from tests.golden.inputs import read_golden, section
from tests.golden.training_batches import TRAINING, training_batch
from tests.small import small_config

CONFIG = {
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "train.num_steps": TRAINING["num_steps"],
    "train.batch_size": TRAINING["batch_size"],
    "schedule.warmup_steps": float(TRAINING["warmup_steps"]),
    **{f"model.{key}": value for key, value in TRAINING["model"].items()},
}
# As in configs/*_lamb.py, but for the schedule.
OPTIMIZERS = {"adamw": {}, "lamb": {"optimizer.name": "lamb", "optimizer.bias_correction": True}}


def train(optimizer: str, **overrides) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Makes the run on one device.

    Returns:
      The loss of every step, and the final weights as transformers names them.
    """
    rate = {"schedule.peak_learning_rate": TRAINING["peak_learning_rate"][optimizer]}
    config = small_config(**CONFIG, **OPTIMIZERS[optimizer], **rate, **overrides)
    trainer = make_trainer(config, jax.devices()[:1])
    layers = trainer.model_config.num_hidden_layers
    names = foreign_names(BERT.names, "huggingface", layers)
    shapes = expected_shapes(trainer.model_config)
    initial = section(read_golden("training"), "initial")
    weights = {key: names[key].restore(initial[names[key].name], shapes[key]) for key in shapes}
    state = trainer.state_of(unflatten(weights, trainer.model_config))
    losses = []
    for batch in trainer.put(training_batch(step) for step in range(TRAINING["num_steps"])):
        state, metrics = trainer.train_step(state, batch)
        losses.append(metrics["loss"])
    final = flatten(jax.device_get(state.params), trainer.model_config)
    return np.array(losses), {names[k].name: names[k].export(v) for k, v in final.items()}
