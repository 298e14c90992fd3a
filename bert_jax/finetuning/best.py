"""Finds the best evaluation of a run and keeps its parameters in WORKDIR/best."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from etils import epath

from bert_jax.base import files
from bert_jax.parallel import multihost
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.state import TrainState


class Best:
    """The best evaluation of a run.

    Each checkpoint of the run stores `state()`, so that an interrupted run finds the same best
    step as an uninterrupted one.

    Args:
      state: The result of `state` at the step that the run continues from; empty for a new run.

    Attributes:
      step: The step of the best evaluation; -1 if there is none. An undefined score is worse than
        any other; if all are undefined, the last one counts.
      results: The `results` of that evaluation.
      num_worse: The number of evaluations after it.
      last_step: The last step that was evaluated; -1 if there is none.
    """

    def __init__(self, directory: epath.PathLike, state: Mapping[str, Any]):
        self.step, self.last_step = state.get("step", -1), state.get("last_step", -1)
        self.score, self.results = state.get("score", 0), state.get("results")
        self.num_worse = state.get("num_worse", 0)
        self._folder = epath.Path(directory) / workdir.BEST
        if self.step not in multihost.run_on_process_zero(self._saved):
            # A killed process replaced it by a better one.
            self.step = -1

    def update(self, state: TrainState, score: float | None, results: Any) -> None:
        """Compares an evaluation with the best; if it is better, keeps the parameters."""
        self.last_step = int(state.step)
        is_known = self.step >= 0 and self.score is not None
        if is_known and (score is None or score <= self.score):
            self.num_worse += 1
            return
        self.step, self.score, self.results = self.last_step, score, results
        self.num_worse = 0
        # Two checkpoints are kept, because a killed process may continue from a step before the
        # newer one.
        params = TrainState(state.step, state.params, opt_state=())
        # The best parameters must be complete before the run's own checkpoint is saved.
        with closing(Checkpointer(self._folder, keep=2)) as checkpoints:
            checkpoints.save(self.step, params, {})

    def state(self) -> dict[str, Any]:
        """Returns the JSON-able values that each checkpoint of the run stores."""
        names = ("step", "score", "results", "last_step", "num_worse")
        return {name: getattr(self, name) for name in names}

    def _saved(self) -> list[int]:
        """Lists the saved steps, and removes later ones than `last_step`, of a killed process."""
        steps = workdir.saved_steps(self._folder)
        for step in steps:
            # The newest checkpoint in this folder counts as the best.
            if step > self.last_step:
                files.remove_directory(self._folder / str(step))
        return [step for step in steps if step <= self.last_step]
