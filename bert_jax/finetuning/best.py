"""Scores the validation splits and keeps the best checkpoint."""

from collections.abc import Callable
from typing import Any

from etils import epath

from bert_jax.parallel import multihost
from bert_jax.tasks.task import Task
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.training.best import open_best, save_best
from bert_jax.training.curves import score_name
from bert_jax.training.recorder import Recorder
from bert_jax.training.state import TrainState

Predict = Callable[[Any, TokenRows], dict[str, Any] | None]


class BestKeeper:
    """Keeps the parameters with the best score on the first validation split.

    Attributes:
      step: The step of the best checkpoint; -1 before the first score.
      scores: The scores of that step, by validation split.
      last_step: The last step that was scored.
    """

    def __init__(self, task: Task, directory: epath.PathLike, resume: dict[str, Any]):
        """Continues from `resume`, an earlier result of `state`; empty for a new run."""
        self._task = task
        self._checkpoints = open_best(directory)
        self.step: int = resume.get("step", -1)
        self.scores: dict[str, dict[str, float]] = resume.get("scores", {})
        self.last_step: int = resume.get("last_step", -1)

    @property
    def splits(self) -> list[str]:
        """The splits that are scored; the first decides which checkpoint is the best."""
        return [split for split in self._task.splits if split.startswith("validation")]

    @property
    def score(self) -> float:
        """The best score."""
        return self.scores[self.splits[0]][self._task.metric]

    def forget_lost(self, is_finished: bool) -> None:
        """Forgets a best step whose checkpoint no longer exists.

        This happens if a better step replaced it after the run's own last checkpoint, and the
        process was killed before it saved the next one.
        """
        saved = multihost.run_on_process_zero(self._checkpoints.steps)
        if self.step >= 0 and self.step not in saved:
            self.step, self.scores = -1, {}
            if is_finished:
                self.last_step = -1

    def judge(self, state: TrainState, predict: Predict, recorder: Recorder) -> None:
        """Scores a state and keeps it if it is the best; does nothing if the run must stop.

        Args:
          state: The state to score.
          predict: (params, rows) -> outputs, or None if the run must stop.
          recorder: Records the scores.
        """
        step, scores = int(state.step), {}
        for split in self.splits:
            outputs = predict(state.params, self._task.rows(split))
            if outputs is None:
                return
            scores[split] = self._task.score(split, outputs)
        score = scores[self.splits[0]][self._task.metric]
        if self.step < 0 or score > self.score:
            save_best(self._checkpoints, state)
            self.step, self.scores = step, scores
        self.last_step = step
        line = {
            score_name(self.splits, split, name): value
            for split, values in scores.items()
            for name, value in values.items()
        }
        metric = self._task.metric
        recorder.log_evaluation(
            step, line, f"validation {metric} {score:.4f} (best: step {self.step:,})"
        )

    def state(self) -> dict[str, Any]:
        """Returns the JSON-able values that each checkpoint of the run stores."""
        return {"step": self.step, "scores": self.scores, "last_step": self.last_step}

    def close(self) -> None:
        self._checkpoints.close()
