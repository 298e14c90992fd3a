"""bert_jax's side of the training runs that benchmarks/golden/training.py records."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.esm import ESM
from bert_jax.interop.families.eurobert import EUROBERT
from bert_jax.interop.families.modernbert import MODERNBERT
from bert_jax.interop.families.roberta import ROBERTA
from bert_jax.interop.family import Family
from bert_jax.interop.names import export_weights, foreign_names
from bert_jax.interop.weights import expected_shapes, flatten, unflatten
from bert_jax.pretraining.build import make_trainer
from tests.golden.inputs import read_golden, section
from tests.golden.training_batches import TRAINING, roberta_batch, training_batch
from tests.small import small_config

CONFIG = {
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "train.num_steps": TRAINING["num_steps"],
    "train.batch_size": TRAINING["batch_size"],
    "schedule.warmup_steps": float(TRAINING["warmup_steps"]),
    **{f"model.{key}": value for key, value in TRAINING["model"].items()},
}


class Run(NamedTuple):
    """A recorded run.

    Attributes:
      config: The values that differ from BERT's.
      family: The names of the weights.
      file: The golden file.
      make_batch: Returns the batch of a step.
    """

    config: dict[str, Any]
    family: Family = BERT
    file: str = "training"
    make_batch: Callable[[int], dict[str, np.ndarray]] = training_batch


RUNS = {
    "adamw": Run({}),
    # As in configs/*_lamb.py, except for the schedule.
    "lamb": Run({"optimizer.name": "lamb", "optimizer.bias_correction": True}),
    # As in configs/roberta.py, but with a token type, which the model of transformers trains.
    "roberta": Run(
        {
            "objective.terms": ("masked_lm",),
            "objective.weights": (1.0,),
            "data.rows": "segments",
            "model.type_vocab_size": 1,
            "model.layer_norm_eps": 1e-5,
            "schedule.shape": "linear_after_warmup",
            "optimizer.b2": 0.98,
            "optimizer.decay_all": True,
            "optimizer.bias_correction": True,
            "optimizer.eps_before_correction": True,
            "optimizer.max_grad_norm": 0.0,
        },
        ROBERTA,
        "training_roberta",
        roberta_batch,
    ),
    # As in configs/eurobert.py, with the shape of the recorded model.
    "eurobert": Run(
        {
            "objective.terms": ("masked_lm",),
            "objective.weights": (1.0,),
            "data.rows": "segments",
            "model.num_key_value_heads": 2,
            "model.hidden_act": "silu",
            "model.gated": True,
            "model.norm": "all_pre_and_final",
            "model.norm_kind": "rms",
            "model.biasless": ("attention", "inner", "output", "decoder"),
            "model.head_transform": False,
            "model.tied_decoder": False,
            "model.type_vocab_size": 0,
            "model.rope_theta": 700.0,
            "model.layer_norm_eps": 1e-5,
            "optimizer.b2": 0.95,
            "optimizer.eps": 1e-5,
            "optimizer.weight_decay": 0.1,
            "optimizer.bias_correction": True,
        },
        EUROBERT,
        "training_eurobert",
    ),
    # As in configs/esm.py, with the shape of the recorded model.
    "esm": Run(
        {
            "objective.terms": ("masked_lm",),
            "objective.weights": (1.0,),
            "data.rows": "segments",
            "model.norm": "all_pre_and_final",
            "model.token_dropout": 0.12,
            "model.mask_token_id": 1,
            "model.type_vocab_size": 0,
            "model.rope_theta": 10_000.0,
            "model.layer_norm_eps": 1e-5,
            "optimizer.b2": 0.98,
            "optimizer.eps": 1e-8,
            "optimizer.bias_correction": True,
        },
        ESM,
        "training_esm",
    ),
    # As in configs/modernbert.py, with the shape of the recorded model.
    "modernbert": Run(
        {
            "objective.terms": ("masked_lm",),
            "objective.weights": (1.0,),
            "data.rows": "segments",
            "model.num_hidden_layers": 4,
            "model.intermediate_size": 40,
            "model.norm": "pre_and_final",
            "model.biases": False,
            "model.gated": True,
            "model.type_vocab_size": 0,
            "model.rope_theta": 700.0,
            "model.local_rope_theta": 30.0,
            "model.local_attention": 8,
            "model.global_every": 3,
            "model.layer_norm_eps": 1e-5,
            "schedule.shape": "constant",
            "optimizer.name": "stable_adamw",
            "optimizer.b2": 0.98,
            "optimizer.weight_decay": 0.0125,
            "optimizer.bias_correction": True,
            "optimizer.max_grad_norm": 0.0,
        },
        MODERNBERT,
        "training_modernbert",
    ),
}


def train(name: str, **overrides) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Trains on one device.

    Returns:
      The loss of every step, and the final weights under transformers' names.
    """
    run = RUNS[name]
    rate = {"schedule.peak_learning_rate": TRAINING["peak_learning_rate"][name]}
    config = small_config(**CONFIG | run.config | rate | overrides)
    trainer = make_trainer(config, jax.devices()[:1])
    layers = trainer.model_config.num_hidden_layers
    names = foreign_names(run.family.names, "huggingface", layers)
    shapes = expected_shapes(trainer.model_config, config.objective.terms)
    initial = section(read_golden(run.file), "initial")
    weights = {key: names[key].restore(initial[names[key].name], shapes[key]) for key in shapes}
    state = trainer.state_of(unflatten(weights, trainer.model_config))
    losses = []
    for batch in trainer.put(run.make_batch(step) for step in range(TRAINING["num_steps"])):
        state, metrics = trainer.train_step(state, batch)
        losses.append(metrics["loss"])
    final = flatten(jax.device_get(state.params), trainer.model_config)
    return np.array(losses), dict(export_weights(final, names))
