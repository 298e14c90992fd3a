"""Splits the steps of a run into stages, each with one sequence length (paper, section A.2)."""

import dataclasses
from collections.abc import Sequence

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.config import max_predictions


@dataclasses.dataclass(frozen=True)
class Stage:
    """Consecutive steps with one sequence length: `first_step` <= step < `end_step`.

    The last steps may be split into parts of `extra_steps` steps, each with its own schedule, whose
    peak is `extra_peak_learning_rate`, or the peak of the stage if this is 0.
    """

    index: int
    first_step: int
    end_step: int
    max_seq_length: int
    max_predictions_per_seq: int
    batch_size: int
    peak_learning_rate: float
    warmup_steps: float
    max_pairs_per_row: int = 1
    extra_steps: tuple[int, ...] = ()
    extra_peak_learning_rate: float = 0.0
    extra_warmup_steps: float = 0.0

    @property
    def num_steps(self) -> int:
        return self.end_step - self.first_step

    def sizes(self, num_rows: int) -> tuple[int, int, int, int]:
        """Returns the arguments of `BatchField.shape` for some rows of the stage."""
        predictions = self.max_predictions_per_seq
        return num_rows, self.max_seq_length, predictions, self.max_pairs_per_row

    @property
    def num_planned_steps(self) -> int:
        """The steps without the extra ones."""
        return self.num_steps - sum(self.extra_steps)


def resolve_stages(config: ConfigDict) -> list[Stage]:
    """Turns the fractions of `config.train.stages` into steps and drops empty stages.

    Boundaries are rounded from the running sum of the fractions; the stages always cover
    `train.num_steps` exactly. The steps of `train.extra` are added to the last stage.
    """
    train, stages, done = config.train, [], 0.0
    # The total may differ from 1 by rounding. It is summed like `done`, which makes the last
    # quotient exactly 1.
    total = sum((entry.fraction for entry in train.stages), 0.0)
    for index, entry in enumerate(train.stages):
        first_step = round(done / total * train.num_steps)
        done += entry.fraction
        end_step = round(done / total * train.num_steps)
        if end_step > first_step:
            stages.append(
                Stage(
                    index=index,
                    first_step=first_step,
                    end_step=end_step,
                    max_seq_length=entry.max_seq_length,
                    max_predictions_per_seq=max_predictions(
                        entry, config.data.masked_lm_prob, config.data.max_pairs_per_row
                    ),
                    batch_size=entry.batch_size or train.batch_size,
                    peak_learning_rate=entry.peak_learning_rate,
                    warmup_steps=entry.warmup_steps,
                    max_pairs_per_row=config.data.max_pairs_per_row,
                )
            )
    extra_steps = tuple(steps for steps in train.extra.steps if steps)
    stages[-1] = dataclasses.replace(
        stages[-1],
        end_step=stages[-1].end_step + sum(extra_steps),
        extra_steps=extra_steps,
        extra_peak_learning_rate=train.extra.peak_learning_rate,
        extra_warmup_steps=train.extra.warmup_steps,
    )
    return stages


def stage_of(stages: Sequence[Stage], step: int) -> Stage:
    """Finds the stage of a step, counted from 1; later steps belong to the last stage."""
    return next((stage for stage in stages if step <= stage.end_step), stages[-1])


def numbered_stage(config: ConfigDict, number: int) -> Stage:
    """Finds the stage of `--stage`, an index of `config.train.stages` that counts from 1.

    Raises:
      UserError: There is no such stage, or it has no steps.
    """
    stages = {stage.index + 1: stage for stage in resolve_stages(config)}
    if number not in stages:
        known = ", ".join(map(str, stages))
        raise UserError(f"--stage is {number}; this config has the stages {known}")
    return stages[number]
