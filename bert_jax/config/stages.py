"""The config keys of the stages of pre-training."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.config.common import SHAPES, check_shape
from bert_jax.config.schema import Field, Section, build

STAGE: Section = {
    "fraction": Field(1.0, "Fraction of train.num_steps.", at_least=0, at_most=1),
    "max_seq_length": Field(
        128, "Tokens in each sequence, including [CLS] and both [SEP].", at_least=5
    ),
    "max_predictions_per_seq": Field(
        0,
        "Largest number of masked positions in a sequence. 0 derives it: max_seq_length times "
        "the masking rate, rounded up to a multiple of 5 (20 for 128 tokens and 80 for 512, as "
        "in BERT), and as many as data.max_pairs_per_row needs.",
        at_least=0,
    ),
    "batch_size": Field(
        0, "Sequences in each step, over all devices. 0 means train.batch_size.", at_least=0
    ),
    "masked_lm_prob": Field(
        0.0,
        "Masking rate of the stage, as data.masked_lm_prob, which 0 means.",
        at_least=0,
        below=1,
    ),
    "weight_decay": Field(
        -1.0,
        "Weight decay of the stage, as optimizer.weight_decay, which -1 means.",
        at_least=0,
        or_equal=-1,
    ),
    "peak_learning_rate": Field(
        0.0,
        "If above 0, the stage has its own schedule with this peak, which starts at the stage's "
        "first step; the optimizer keeps its moments. 0 means the schedule of the run or, if the "
        "stage has a shape, its peak.",
        at_least=0,
    ),
    "warmup_steps": Field(
        0.0, "Warm-up of the stage's own schedule, as in schedule.warmup_steps.", at_least=0
    ),
    "shape": Field(
        "",
        "Form of the stage's own schedule, as in schedule.shape. If empty, the stage has the form "
        "and the end of the run's schedule.",
        choices=("", *SHAPES),
    ),
    "end_factor": Field(
        0.0, "End of the stage's shape, as in schedule.end_factor.", at_least=0, at_most=1
    ),
    "rope_theta": Field(
        0.0,
        "model.rope_theta during the stage, which 0 means. ModernBERT raises it for longer rows. "
        "A model is evaluated, loaded and exported with the value of its last step.",
        at_least=0,
    ),
    "local_rope_theta": Field(
        0.0, "model.local_rope_theta during the stage, which 0 means.", at_least=0
    ),
}

# The keys of a run that a stage may have of its own, and the key of a stage that says so.
_OWN_KEYS = {
    "train.batch_size": "batch_size",
    "data.masked_lm_prob": "masked_lm_prob",
    "optimizer.weight_decay": "weight_decay",
    "schedule.peak_learning_rate": "peak_learning_rate",
    "schedule.shape": "shape",
    "schedule.end_factor": "shape",
    "model.rope_theta": "rope_theta",
    "model.local_rope_theta": "local_rope_theta",
}
# The keys of a stage that replace keys of config.model of the same name, and the keys of the model
# that they need.
OWN_MODEL_KEYS = {
    "rope_theta": ("rope_theta",),
    "local_rope_theta": ("rope_theta", "local_attention"),
}


def stage(**values: Any) -> ConfigDict:
    """Makes a stage for `train.stages`; `STAGE` defines the keys."""
    return build(STAGE, values, "train.stages[].")


def stages_of_tokens(entries: Iterable[Mapping[str, Any]]) -> tuple[int, tuple[ConfigDict, ...]]:
    """Makes stages from numbers of tokens instead of fractions.

    Args:
      entries: For each stage, its `tokens` and keys of `STAGE`, with `batch_size` and
        `max_seq_length`.

    Returns:
      The values of `train.num_steps` and `train.stages`.
    """
    entries = list(entries)
    steps = [
        max(1, round(entry["tokens"] / (entry["batch_size"] * entry["max_seq_length"])))
        for entry in entries
    ]
    total = sum(steps)
    stages = (
        stage(fraction=count / total, **{k: v for k, v in entry.items() if k != "tokens"})
        for count, entry in zip(steps, entries, strict=True)
    )
    return total, tuple(stages)


def batch_ramp(tokens: float, batch_sizes: Sequence[int], **values: Any) -> list[dict[str, Any]]:
    """Makes entries for `stages_of_tokens` with a rising batch size.

    Each size has the same number of steps, so that the batch rises by steps along a line, as in
    `BatchSizeWarmupScheduler` of ModernBERT's sequence_packer.py. Each size is compiled, and each
    entry reads the text in another order, as stages do.

    Args:
      tokens: The tokens of the whole ramp.
      batch_sizes: The batch sizes, which should have equal distances.
      values: Keys of `STAGE` for all entries.
    """
    share = tokens / sum(batch_sizes)
    return [{"tokens": share * size, "batch_size": size, **values} for size in batch_sizes]


def lamb_stages() -> tuple[ConfigDict, ConfigDict]:
    """Makes the mixed-batch stages of You et al. 2020 (arXiv:1904.00962): 7,038 + 1,563 steps."""
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


def has_own_schedule(stage: ConfigDict) -> bool:
    """Returns whether a stage does not follow the schedule of the run."""
    return bool(stage.peak_learning_rate or stage.shape)


def check_stages(config: ConfigDict) -> None:
    """Refuses stages whose fractions do not add up to 1, or with impossible sequences."""
    stages, positions = config.train.stages, config.model.max_position_embeddings
    total = sum(stage.fraction for stage in stages)
    if not math.isclose(total, 1, abs_tol=1e-6):
        raise UserError(f"the fractions of config.train.stages add up to {total:g}, not to 1")
    for i, stage in enumerate(stages):
        path, length = f"config.train.stages[{i}]", stage.max_seq_length
        if length > positions:
            raise UserError(
                f"{path}.max_seq_length is {length}, longer than the "
                f"{positions} positions of config.model.max_position_embeddings"
            )
        # [CLS] and both [SEP] tokens are never predicted.
        if stage.max_predictions_per_seq > length - 3:
            raise UserError(
                f"{path}.max_predictions_per_seq is {stage.max_predictions_per_seq}; a sequence "
                f"of {length} has at most {length - 3} tokens to predict"
            )


def check_own_keys(config: ConfigDict) -> None:
    """Refuses keys of stages that have no effect.

    Raises:
      UserError: The message names the keys.
    """
    for i, stage in enumerate(config.train.stages):
        path = f"config.train.stages[{i}]"
        check_shape(path, stage)
        if stage.warmup_steps and not has_own_schedule(stage):
            raise UserError(
                f"{path}.warmup_steps is {stage.warmup_steps:g}, but the stage follows the "
                f"schedule of the run; set {path}.peak_learning_rate or {path}.shape, or "
                "config.schedule.warmup_steps"
            )
        for key, needed in OWN_MODEL_KEYS.items():
            absent = [name for name in needed if not config.model[name]]
            if stage[key] and absent:
                raise UserError(
                    f"{path}.{key} is {stage[key]:g}, but config.model.{absent[0]} is 0, so that "
                    "the model has no such layers; leave it at 0"
                )
        if stage.masked_lm_prob and config.data.corruption == "none":
            raise UserError(
                f"{path}.masked_lm_prob is {stage.masked_lm_prob:g}, but has no effect with "
                "config.data.corruption=none; leave it at 0"
            )


def check_given(config: ConfigDict, flags: Collection[str]) -> None:
    """Refuses a flag for a key of the run that every stage has of its own.

    Args:
      flags: The keys that flags set.

    Raises:
      UserError: The message names both keys.
    """
    used = [(i, stage) for i, stage in enumerate(config.train.stages) if stage.fraction]
    for key, own in _OWN_KEYS.items():
        if key in flags and all(stage[own] != STAGE[own].default for _, stage in used):
            values = ", ".join(f"config.train.stages[{i}].{own}={stage[own]}" for i, stage in used)
            raise UserError(
                f"config.{key} has no effect, because every stage has its own value: {values}; set "
                "these instead"
            )
    if "schedule.warmup_steps" in flags and all(has_own_schedule(stage) for _, stage in used):
        paths = ", ".join(f"config.train.stages[{i}].warmup_steps" for i, _ in used)
        raise UserError(
            "config.schedule.warmup_steps has no effect, because every stage has its own schedule; "
            f"set {paths} instead"
        )
