"""The batches and the evaluations of a run of pre-training.

`bert_jax.pretraining.train` is a run from top to bottom, `bert_jax.pretraining.build` makes its
trainer, and `bert_jax.training.loop` takes its steps.
"""

from collections.abc import Generator
from contextlib import closing
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax.objectives.language_model import FILLED_TEXTS
from bert_jax.parallel import multihost
from bert_jax.pretraining.batches import RunInput, heldout_characters_per_token, stream_spec
from bert_jax.pretraining.heldout import counts_by_source, evaluate, progress_text
from bert_jax.store.token_store import TokenStore
from bert_jax.training.loop import PreemptionGuard
from bert_jax.training.metrics import OTHER_TEXT
from bert_jax.training.recorder import Recorder
from bert_jax.training.stages import Stage
from bert_jax.training.state import TrainState
from bert_jax.training.trainer import Trainer


class PretrainingRun:
    """The batches and evaluations of pre-training; see `Run` for what the loop does with them.

    Args:
      resume: What the checkpoint that the run continues from stores beside the state; empty for a
        new run.
      guesses_at_random: Whether the head that fills masks is drawn from the seed although the run
        begins with given weights; its guesses at step 0 are not shown.

    Attributes:
      results: The results of the latest evaluation; empty if there was none since the start.
    """

    label, is_over = "train", False

    def __init__(
        self,
        config: ConfigDict,
        directory: epath.Path,
        trainer: Trainer,
        run_input: RunInput,
        resume: dict[str, Any],
        guesses_at_random: bool = False,
    ):
        self.config, self.directory, self.trainer = config, directory, trainer
        self.num_steps = config.train.num_steps
        self.evaluated_step = resume.get("evaluated_step", -1)
        self.results: dict[str, Any] = {}
        self._input, self._resume = run_input, resume
        self._guesses_at_random = guesses_at_random
        if run_input.heldout:
            self._token_counts = counts_by_source(run_input.train)

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
            return evaluate(
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
        if not step and self._guesses_at_random:
            results.pop(FILLED_TEXTS, None)
        self.results, self.evaluated_step = results, step
        text = progress_text(trainer.objective.metrics, results)
        recorder.log_evaluation(step, results, text)
