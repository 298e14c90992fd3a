"""Finds the best evaluation of a run and keeps its parameters in WORKDIR/best."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import jax.numpy as jnp
from etils import epath

from bert_jax import files, workdir
from bert_jax.objectives.weighted import WeightedTerms
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import EVALUATION_PREFIX
from bert_jax.training.stages import Stage, stage_of
from bert_jax.training.state import TrainState


class Evaluations:
    """The evaluations of a pre-training run, which decide its best step and its early end.

    The loss depends on the sequence length. Only evaluations at the latest length are compared.

    Args:
      objective: Supplies the loss.
      stages: The stages of the run.
      patience: As `config.train.early_stopping_patience`.
      lines: The lines of metrics.jsonl up to the step that the run continues from.

    Attributes:
      results: The results of each evaluated step, oldest first.
    """

    def __init__(
        self,
        objective: WeightedTerms,
        stages: Sequence[Stage],
        patience: int,
        lines: Sequence[Mapping[str, Any]],
    ):
        self._objective, self._stages, self._patience = objective, stages, patience
        self.results: dict[int, dict[str, Any]] = {}
        for line in lines:
            # metrics.jsonl has null in place of infinity.
            values = {
                name.removeprefix(EVALUATION_PREFIX): math.inf if value is None else value
                for name, value in line.items()
                if name.startswith(EVALUATION_PREFIX)
            }
            if values:
                self.results[line["step"]] = values

    def stage(self, step: int) -> Stage:
        """Returns the stage at whose sequence length a step is evaluated."""
        return stage_of(self._stages, step) if step else self._stages[-1]

    def best(self) -> tuple[int, float] | None:
        """Returns the step with the lowest loss and this loss; None without an evaluation."""
        return min(self._comparable(), key=lambda pair: pair[1], default=None)

    def has_stalled(self) -> bool:
        """Returns whether the latest `patience` evaluations brought no lower loss."""
        steps = [step for step, _ in self._comparable()]
        return bool(self._patience and steps) and (
            len(steps) - 1 - steps.index(self.best()[0]) >= self._patience
        )

    def _comparable(self) -> list[tuple[int, float]]:
        lengths = {step: self.stage(step).max_seq_length for step in self.results}
        return [
            (step, self._objective.held_out_loss(results))
            for step, results in self.results.items()
            if lengths[step] == lengths[max(lengths)]
        ]


def open_best(directory: epath.PathLike) -> Checkpointer:
    """Opens WORKDIR/best.

    Two checkpoints are kept, because a killed process may continue from a step before the newer.
    """
    return Checkpointer(epath.Path(directory) / workdir.BEST, keep=2)


def save_best(checkpoints: Checkpointer, state: TrainState) -> None:
    """Saves the parameters of a state, without the optimizer's moments."""
    step = int(state.step)
    if step not in checkpoints.steps():
        checkpoints.save(step, TrainState(state.step, state.params, opt_state=()), {})
        # The best parameters must be complete before the run's own checkpoint is saved.
        checkpoints.wait()


def restore_best(directory: epath.PathLike, abstract_params: Any, step: int) -> TrainState:
    """Returns a state with the parameters that `save_best` saved."""
    folder = epath.Path(directory) / workdir.BEST
    with closing(Checkpointer(folder, read_only=True)) as checkpoints:
        _, params = checkpoints.restore_params(abstract_params, step)
    return TrainState(jnp.asarray(step), params, opt_state=())


def remove_later(directory: epath.PathLike, step: int) -> None:
    """Removes the best checkpoints that a killed process left after `step`."""
    folder = epath.Path(directory) / workdir.BEST
    for path in folder.iterdir() if folder.exists() else ():
        # The newest checkpoint in this folder counts as the best.
        if path.name.isdecimal() and int(path.name) > step:
            files.remove_directory(path)
