"""Splits the steps of a run into stages, each with one sequence length (paper, section A.2)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.config.schema import to_dict
from bert_jax.config.stage_keys import (
    OWN_MODEL_KEYS,
    has_own_schedule,
    masking_rate,
    max_predictions,
)


@dataclasses.dataclass(frozen=True)
class Curve:
    """A curve of the learning rate; see `make_schedule`.

    Attributes:
      num_steps: The steps of the whole curve, over all stages that share it.
      steps_before: The steps of the curve in earlier stages; None if only one stage has the curve.
      shape, peak_learning_rate, warmup_steps, end_factor, decay_power: As in `config.schedule`.
    """

    num_steps: int
    steps_before: int | None
    shape: str
    peak_learning_rate: float
    warmup_steps: float
    end_factor: float
    decay_power: float

    @property
    def num_warmup_steps(self) -> float:
        """The steps of the warm-up; a fraction is rounded down, as in run_classifier.py.

        A fraction is at least one step of inverse_root, whose decay is counted from the warm-up's
        end.
        """
        warmup = self.warmup_steps
        if warmup >= 1:
            return warmup
        least = 1 if self.shape == "inverse_root" and warmup else 0
        return max(least, int(warmup * self.num_steps))


@dataclasses.dataclass(frozen=True)
class Stage:
    """Consecutive steps with batches of one shape: `first_step` <= step < `end_step`.

    Attributes:
      index: The place in `config.train.stages`.
      model_keys: The keys of `config.model` with other values during the stage, and these values.
    """

    index: int
    first_step: int
    end_step: int
    max_seq_length: int
    max_predictions_per_seq: int
    batch_size: int
    masked_lm_prob: float
    weight_decay: float
    curve: Curve
    max_pairs_per_row: int = 1
    model_keys: tuple[tuple[str, Any], ...] = ()

    @property
    def num_steps(self) -> int:
        return self.end_step - self.first_step

    def sizes(self, num_rows: int) -> tuple[int, int, int, int]:
        """Returns the arguments of `BatchField.shape` for some rows of the stage."""
        predictions = self.max_predictions_per_seq
        return num_rows, self.max_seq_length, predictions, self.max_pairs_per_row


def curve_of_run(schedule: ConfigDict, num_steps: int, steps_before: int = 0) -> Curve:
    return Curve(num_steps, steps_before, **schedule)


def resolve_stages(config: ConfigDict) -> list[Stage]:
    """Turns the fractions of `config.train.stages` into steps and drops empty stages.

    Boundaries are rounded from the running sum of the fractions; the stages always cover
    `train.num_steps` exactly.
    """
    train, data, spans, done = config.train, config.data, [], 0.0
    # The total may differ from 1 by rounding. It is summed like `done`, which makes the last
    # quotient exactly 1.
    total = sum((entry.fraction for entry in train.stages), 0.0)
    for index, entry in enumerate(train.stages):
        first_step = round(done / total * train.num_steps)
        done += entry.fraction
        end_step = round(done / total * train.num_steps)
        if end_step > first_step:
            spans.append((index, first_step, end_step))
    # Stages that share a curve need not be adjacent; the steps between them do not count.
    shared_steps = sum(
        end - first for index, first, end in spans if not has_own_schedule(train.stages[index])
    )
    stages, before = [], 0
    for index, first_step, end_step in spans:
        entry = train.stages[index]
        if has_own_schedule(entry):
            curve = _own_curve(entry, config.schedule, end_step - first_step)
        else:
            curve = curve_of_run(config.schedule, shared_steps, before)
            before += end_step - first_step
        decay = entry.weight_decay
        stages.append(
            Stage(
                index=index,
                first_step=first_step,
                end_step=end_step,
                max_seq_length=entry.max_seq_length,
                max_predictions_per_seq=max_predictions(entry, data),
                batch_size=entry.batch_size or train.batch_size,
                masked_lm_prob=masking_rate(entry, data),
                weight_decay=config.optimizer.weight_decay if decay == -1 else decay,
                curve=curve,
                max_pairs_per_row=data.max_pairs_per_row,
                model_keys=tuple((key, entry[key]) for key in OWN_MODEL_KEYS if entry[key]),
            )
        )
    return stages


def _own_curve(entry: ConfigDict, schedule: ConfigDict, num_steps: int) -> Curve:
    shaped = entry if entry.shape else schedule
    return Curve(
        num_steps,
        None,
        shape=shaped.shape,
        peak_learning_rate=entry.peak_learning_rate or schedule.peak_learning_rate,
        warmup_steps=entry.warmup_steps,
        end_factor=shaped.end_factor,
        decay_power=schedule.decay_power,
    )


def comparable(config: ConfigDict, step: int) -> dict[str, Any]:
    """Returns the values of a config of pre-training by key, to compare them with another's.

    In addition to the stages as a whole, there are the keys of those that take the steps up to
    `step`, such as train.stages[0].batch_size, with these steps.
    """
    values, entries = to_dict(config), _entries(config)
    values["train"]["stages"] = entries
    for stage in resolve_stages(config):
        if stage.first_step < step:
            entry = dict(entries[stage.index])
            # Other fractions of another number of steps may be the same steps.
            del entry["fraction"]
            entry["steps"] = f"{stage.first_step + 1} to {min(stage.end_step, step)}"
            path = f"train.stages[{stage.index}]"
            values |= {f"{path}.{key}": value for key, value in entry.items()}
    return values


def _entries(config: ConfigDict) -> list[dict[str, Any]]:
    """Returns the keys of the stages, with the number of predictions that 0 stands for."""
    return [
        {**to_dict(entry), "max_predictions_per_seq": max_predictions(entry, config.data)}
        for entry in config.train.stages
    ]


def stages_of_run(before: ConfigDict, now: ConfigDict) -> tuple[ConfigDict, ...]:
    """Returns the stages of a run that goes on with another config.

    If the config has the stages of the run, with any fractions, all stages keep their steps but the
    last one, which takes the steps up to `now.train.num_steps`. The same fractions of another
    number would move boundaries that the run has passed. A config with other stages, or whose steps
    end before the last stage, keeps its own; `bert_jax.training.start.check` compares them with
    the steps that have run.

    Returns:
      The value of `now.train.stages`, with other fractions if they must change.
    """

    def without_fractions(config: ConfigDict) -> list[dict[str, Any]]:
        return [entry | {"fraction": 0} for entry in _entries(config)]

    def steps(config: ConfigDict) -> list[int]:
        counts = [0] * len(config.train.stages)
        for stage in resolve_stages(config):
            counts[stage.index] = stage.num_steps
        return counts

    last, num_steps = resolve_stages(before)[-1], now.train.num_steps
    if without_fractions(before) != without_fractions(now) or num_steps <= last.first_step:
        return now.train.stages
    counts = steps(before)
    counts[last.index] = num_steps - last.first_step
    if counts == steps(now):
        return now.train.stages
    stages = tuple(entry.copy_and_resolve_references() for entry in now.train.stages)
    for entry, count in zip(stages, counts, strict=True):
        entry.fraction = count / num_steps
    return stages


def stage_of(stages: Sequence[Stage], step: int) -> Stage:
    """Finds the stage of a step, counted from 1; later steps belong to the last stage."""
    return next((stage for stage in stages if step <= stage.end_step), stages[-1])


def model_keys(stages: Sequence[Stage], step: int) -> tuple[tuple[str, Any], ...]:
    """Returns `Stage.model_keys` of a checkpoint; before the first step, the config's keys hold."""
    return stage_of(stages, step).model_keys if step else ()


def numbered_stage(config: ConfigDict, number: int) -> Stage:
    """Finds the stage of `--stage`, an index of `config.train.stages` that counts from 1."""
    stages = {stage.index + 1: stage for stage in resolve_stages(config)}
    if number not in stages:
        known = ", ".join(map(str, sorted(stages)))
        raise UserError(f"--stage is {number}; this config has the stages {known}")
    return stages[number]
