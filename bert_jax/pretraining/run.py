"""A run of pre-training: its input, first state, batches, evaluations and results.

`bert_jax.commands.pretrain` makes it, and `bert_jax.training.engine` is a run from top to bottom.
"""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax.interop.pretrained import Pretrained
from bert_jax.objectives.language_model import FILLED_TEXTS
from bert_jax.parallel import multihost
from bert_jax.pretraining import evaluation, summary
from bert_jax.pretraining.first_state import (
    guesses_at_random,
    make_first_state,
    write_initial_length,
)
from bert_jax.pretraining.input import RunInput, heldout_characters_per_token, stream_spec
from bert_jax.store.token_store import TokenStore
from bert_jax.training import start
from bert_jax.training.loop import PreemptionGuard
from bert_jax.training.metrics import BEFORE, OTHER_TEXT, evaluation_at
from bert_jax.training.recorder import Recorder
from bert_jax.training.stages import Stage
from bert_jax.training.state import TrainState
from bert_jax.training.trainer import Trainer


class PretrainingRun:
    """A run of pre-training; see `Run` for what happens to it.

    Args:
      warnings: Sentences to print before the first step.
      pretrained: The model that the run begins with; None if it begins otherwise, or goes on.
      teacher: The teacher; None if the config has none.
      open_input: Opens the input, and prepares it first if it is missing.

    Attributes:
      results: The results of the latest evaluation; empty if there was none since the start.
    """

    label, is_over = "train", False

    def __init__(
        self,
        config: ConfigDict,
        directory: epath.Path,
        trainer: Trainer,
        warnings: list[str],
        *,
        pretrained: Pretrained | None,
        teacher: Pretrained | None,
        open_input: Callable[[], RunInput],
    ):
        self.config, self.directory, self.trainer = config, directory, trainer
        self.num_steps = config.train.num_steps
        self.results: dict[str, Any] = {}
        self._warnings, self._open_input = warnings, open_input
        self._pretrained, self._teacher = pretrained, teacher
        self._reports: list[dict[str, Any]] = []

    def open_input(self) -> None:
        self._input = self._open_input()
        if self._input.heldout:
            self._token_counts = evaluation.counts_by_source(self._input.train)

    def first_state(self) -> tuple[TrainState, dict[str, Any]]:
        models, tokenizer = (self._pretrained, self._teacher), self._input.tokenizer
        return make_first_state(self.config, self.directory, self.trainer, *models, tokenizer)

    def begin(self, resume: dict[str, Any]) -> None:
        self._resume, self.evaluated_step = resume, resume.get("evaluated_step", -1)

    def claim(self) -> None:
        start.claim(self.directory, self.config)
        write_initial_length(self.config, self.directory, self._pretrained)

    def announce(self, step: int) -> None:
        if multihost.is_first():
            self._reports = summary.corpus_reports(self._input, self.config, self.trainer.stages)
        described = self.config, self.trainer, self._input, self.directory
        summary.announce(*described, step, self._warnings, self._reports)

    def batches(self, step: int) -> Generator[tuple[Stage, dict[str, jax.Array]]]:
        shards = multihost.batch_shards(self.trainer.layout.batch)
        for stage in self.trainer.stages:
            if step >= stage.end_step:
                continue
            stream = self._input.stream(stream_spec(self.config, stage), **shards)
            done = max(step, stage.first_step)
            first, num_steps = done - stage.first_step, stage.end_step - done
            position = None
            if self._resume.get("stage") == stage.index:
                position = self._resume.get("position")
            with closing(stream.batches(first, num_steps, position)) as rows:
                for batch in self.trainer.put(rows):
                    # Those of the batch that is trained next, not of the one that is read ahead.
                    self._stage, self._stream = stage, stream
                    yield stage, batch

    def resume_point(self, step: int) -> dict[str, Any]:
        return {
            "stage": self._stage.index,
            "position": self._stream.position(step - self._stage.first_step),
            "evaluated_step": self.evaluated_step,
        }

    def is_evaluated(self, step: int) -> bool:
        every_steps = self.config.eval.every_steps
        # The evaluation at step 0 shows before training whether its batches fit into memory.
        is_due = step in (0, self.num_steps) or (every_steps and step % every_steps == 0)
        return self._input.heldout is not None and bool(is_due)

    def evaluate(self, state: TrainState, recorder: Recorder, guard: PreemptionGuard) -> None:
        step, trainer = int(state.step), self.trainer
        # At step 0, random weights need no score: one batch is enough.
        is_trial = not step and not self.config.init_from

        def score(
            store: TokenStore, token_counts: dict[str, np.ndarray], characters_per_token: float
        ) -> dict[str, Any]:
            return evaluation.evaluate(
                trainer,
                state.params,
                step,
                store=store,
                tokenizer=self._input.tokenizer,
                token_counts=token_counts,
                config=self.config,
                characters_per_token=characters_per_token,
                stop=lambda: is_trial or guard.poll(),
            )

        density = heldout_characters_per_token(self._input.metadata)
        results = score(self._input.heldout, self._token_counts, density)
        if results and self._input.other:
            store, density = self._input.other
            other = score(store, {"": self._input.train.token_counts}, density)
            other.pop(FILLED_TEXTS, None)
            results = other and results | {OTHER_TEXT + name: x for name, x in other.items()}
        if not results:
            return
        if not step and guesses_at_random(self.config, self._pretrained):
            results.pop(FILLED_TEXTS, None)
        self.results, self.evaluated_step = results, step
        text = evaluation.progress_text(trainer.objective.metrics, results)
        recorder.log_evaluation(step, results, text)

    def end(self, step: int, times: dict[str, float | None]) -> dict[str, Any]:
        results = self.results | {"step": step} | times | {"corpus": self._reports}
        if self.config.init_from and (before := evaluation_at(self.directory, 0)):
            results[BEFORE] = before
        return results

    def predict_splits(
        self, results: dict[str, Any], guard: PreemptionGuard
    ) -> dict[str, Any] | None:
        return {}
