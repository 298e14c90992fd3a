"""The stages of a pre-training run: the entries of `config.train.stages`."""

import math
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.config.schema import Field, Section, build

STAGE: Section = {
    "fraction": Field(1.0, "Fraction of train.num_steps.", at_least=0, at_most=1),
    "max_seq_length": Field(
        128, "Tokens in each sequence, including [CLS] and both [SEP].", at_least=5
    ),
    "max_predictions_per_seq": Field(
        0,
        "Largest number of masked positions in a sequence. 0 derives it: max_seq_length times "
        "data.masked_lm_prob, rounded up to a multiple of 5 (20 for 128 tokens and 80 for 512, as "
        "in BERT).",
        at_least=0,
    ),
    "batch_size": Field(
        0, "Sequences in each step, over all devices. 0 means train.batch_size.", at_least=0
    ),
    "peak_learning_rate": Field(
        0.0,
        "If above 0, the stage has its own schedule with this peak, which starts at the stage's "
        "first step; the optimizer keeps its moments. 0 means the schedule of the run.",
        at_least=0,
    ),
    "warmup_steps": Field(
        0.0, "Warm-up of the stage's own schedule, as in schedule.warmup_steps.", at_least=0
    ),
}


def stage(**values: Any) -> ConfigDict:
    """Returns one entry of `train.stages`; `STAGE` defines the keys."""
    return build(STAGE, values, "train.stages[].")


def max_predictions(entry: ConfigDict, masked_lm_prob: float) -> int:
    """Returns the largest number of predictions in a sequence of a stage."""
    return entry.max_predictions_per_seq or derived_predictions(
        entry.max_seq_length, masked_lm_prob
    )


def derived_predictions(max_seq_length: int, masked_lm_prob: float) -> int:
    """Returns the number of predictions that a sequence of this length needs."""
    fives = math.ceil(round(max_seq_length * masked_lm_prob / 5, 6))
    # [CLS] and both [SEP] tokens are not predicted.
    return min(5 * fives, max_seq_length - 3)


def prediction_warnings(config: ConfigDict) -> list[str]:
    """Returns a sentence for each stage that predicts fewer tokens than data.masked_lm_prob."""
    if config.data.corruption == "none" or config.data.format == "google_tfrecord":
        return []
    rate, warnings = config.data.masked_lm_prob, []
    for i, entry in enumerate(config.train.stages):
        most, length = max_predictions(entry, rate), entry.max_seq_length
        if entry.fraction and most < 0.9 * rate * length:
            warnings.append(
                f"config.train.stages[{i}].max_predictions_per_seq is {most}, so only "
                f"{most / length:.1%} of the tokens in full rows of {length} are predicted, not "
                f"config.data.masked_lm_prob={rate:g}; 0 derives the number from the length"
            )
    return warnings


def lamb_stages() -> tuple[ConfigDict, ConfigDict]:
    """Returns the mixed-batch stages of You et al. 2020 (arXiv:1904.00962): 7,038 + 1,563 steps."""
    first_steps, second_steps = 7038, 1563
    return (
        stage(
            fraction=first_steps / (first_steps + second_steps),
            max_seq_length=128,
            max_predictions_per_seq=20,
            batch_size=65536,
            peak_learning_rate=6e-3,
            warmup_steps=0.2843,
        ),
        stage(
            fraction=second_steps / (first_steps + second_steps),
            max_seq_length=512,
            max_predictions_per_seq=80,
            batch_size=32768,
            peak_learning_rate=4e-3,
            warmup_steps=0.128,
        ),
    )


def total_steps(train: ConfigDict) -> int:
    """Returns the steps of a run, with those of `train.extra`."""
    return train.num_steps + sum(train.extra.steps)


def check_stages(
    stages: Sequence[ConfigDict], max_position_embeddings: int, masked_lm_prob: float
) -> None:
    """Refuses stages whose fractions do not add up to 1, or with impossible sequences."""
    total = sum(entry.fraction for entry in stages)
    if not math.isclose(total, 1, abs_tol=1e-6):
        raise UserError(f"the fractions of config.train.stages add up to {total:g}, not to 1")
    for i, entry in enumerate(stages):
        path, length = f"config.train.stages[{i}]", entry.max_seq_length
        if length > max_position_embeddings:
            raise UserError(
                f"{path}.max_seq_length is {length}, longer than the "
                f"{max_position_embeddings} positions of config.model.max_position_embeddings"
            )
        # [CLS] and both [SEP] tokens are not counted as predictable.
        if entry.max_predictions_per_seq > length - 3:
            raise UserError(
                f"{path}.max_predictions_per_seq is {entry.max_predictions_per_seq}; a sequence "
                f"of {length} has at most {length - 3} tokens to predict"
            )
        if not max_predictions(entry, masked_lm_prob):
            raise UserError(
                f"config.data.masked_lm_prob is {masked_lm_prob:g}, so small that no token of a "
                f"sequence of {length} is predicted; BERT's is 0.15"
            )
