"""A run of fine-tuning: its input, first state, batches, evaluations and results."""

import dataclasses
import functools
import math
from collections.abc import Callable, Generator
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config.finetuning import filled_in
from bert_jax.finetuning import predictions, summary
from bert_jax.finetuning.batches import predict, training_batches
from bert_jax.finetuning.best import Best
from bert_jax.finetuning.build import make_stage, make_trainer
from bert_jax.finetuning.first_state import make_first_state
from bert_jax.interop.pretrained import Pretrained
from bert_jax.parallel import multihost
from bert_jax.tasks.scores import score_text
from bert_jax.tasks.task import Task
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.tokenizers import Tokenizer
from bert_jax.training import start, workdir
from bert_jax.training.loop import PreemptionGuard
from bert_jax.training.metrics import BASELINE, CLASSES, score_name
from bert_jax.training.recorder import Recorder
from bert_jax.training.schedule import warmup_warnings
from bert_jax.training.stages import Stage
from bert_jax.training.state import TrainState
from bert_jax.training.tracker import check_installed
from bert_jax.training.trainer import Trainer

# A larger fraction of unknown tokens gives a warning.
_MAX_UNKNOWN_FRACTION = 0.1


@dataclasses.dataclass(frozen=True)
class TaskSetup:
    """The weights and data that all runs of a task share.

    Attributes:
      model: The model keys of the weights, as in `config.model`.
      family: The family of the weights, as in `config.family`.
      read_weights: Returns the weights, which a run that goes on from its own checkpoint needs only
        if all its checkpoints are damaged.
      guided: Adds the vectors of `config.embedding.guide`, if any, to the training rows.
    """

    model: dict[str, Any]
    family: str
    tokenizer: Tokenizer
    task: Task
    read_weights: Callable[[], Pretrained]
    guided: Callable[[Any], Any] = lambda rows: rows

    @functools.cached_property
    def training_rows(self) -> TokenRows:
        """The rows of the batches, which are those of the data, with what `guided` adds."""
        return self.guided(self.task.rows("train"))

    @functools.cached_property
    def data_identity(self) -> dict[str, Any]:
        """The identity of the task's data, which must not change in a work directory."""
        splits = ("train", *self.task.scored_splits)
        return {
            "task": self.task.name,
            "rows": {split: len(self.task.rows(split)) for split in splits},
            "sha256": {split: self.task.rows(split).fingerprint() for split in splits},
            "tokenizer": self.tokenizer.fingerprint,
        }


def make_run(config: ConfigDict, directory: epath.Path, setup: TaskSetup) -> "FinetuningRun":
    """Completes the config, and checks everything that can be checked before any work."""
    task, tokenizer = setup.task, setup.tokenizer
    # What dtype=auto means does not change in a work directory.
    dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    if (directory / workdir.CONFIG).exists():
        dtype = workdir.load_config(directory).dtype
    config = filled_in(config, setup.model, task.head, task.labels, setup.family, dtype=dtype)
    warnings = start.check(directory, config)
    warnings += read_rows(config, task)
    rows = task.rows("train")
    check_segments(config, rows)
    warnings += task.check(config)
    stage = make_stage(config, rows)
    check_installed(config)
    trainer = make_trainer(config, stage, task.class_counts(), tokenizer=tokenizer)
    warnings += warmup_warnings([stage])
    if rows.unknown_fraction > _MAX_UNKNOWN_FRACTION:
        is_protein = tokenizer.kind == "protein"
        advice = "write proteins in upper case" if is_protein else "take a model for this language"
        warnings.append(
            f"{rows.unknown_fraction:.0%} of the tokens of the training examples are "
            f"unknown to the vocabulary of the model {config.init_from}; {advice}"
        )
    return FinetuningRun(config, directory, setup, trainer, warnings)


def read_rows(config: ConfigDict, task: Task) -> list[str]:
    """Reads all rows of a run now, because a bad row would end it hours later.

    Returns:
      A sentence for each split with truncated rows.
    """
    predicted = predictions.predicted_splits(config, task)
    splits = dict.fromkeys(("train", *task.scored_splits, *predicted))
    truncated = {split: task.rows(split).truncated() for split in splits}
    return [f"{split}: {text}" for split, text in truncated.items() if text]


def check_segments(config: ConfigDict, rows: TokenRows) -> None:
    """Refuses sentence pairs if the weights have only one token type.

    A model without any token type, such as DistilBERT, accepts pairs: only [SEP] separates them.
    """
    # Either all examples of a task are pairs or none is.
    if config.model.type_vocab_size == 1 and rows.take(np.arange(1))["token_type_ids"].any():
        raise UserError(
            f"config.init_from is {config.init_from}, which has only one token type "
            f"(type_vocab_size is 1), but the examples of {config.task} are pairs"
        )


class FinetuningRun:
    """A run of fine-tuning; see `Run` for what happens to it.

    Args:
      config: The completed config.
      warnings: Sentences to print before the first step.
    """

    label = "finetune"
    best: Best

    def __init__(
        self,
        config: ConfigDict,
        directory: epath.Path,
        setup: TaskSetup,
        trainer: Trainer,
        warnings: list[str],
    ):
        self.config, self.directory, self.trainer = config, directory, trainer
        self.setup, self.task, self.warnings = setup, setup.task, warnings
        self.rows = setup.training_rows
        (self.stage,) = trainer.stages
        self.num_steps = self.stage.num_steps
        self.before: dict[str, Any] = {}

    def open_input(self) -> None:
        """Claims the data of the task, which is open already; see `TaskSetup`."""
        setup = self.setup
        multihost.run_on_process_zero(
            start.claim_corpus, self.directory, setup.data_identity, setup.tokenizer, None
        )

    def first_state(self) -> tuple[TrainState, dict[str, Any]]:
        """Returns the encoder of the weights with a new head."""
        return make_first_state(self.config, self.trainer, self.setup.read_weights), {}

    def begin(self, resume: dict[str, Any]) -> None:
        self.best = Best(self.directory, resume.get("best", {}))
        self.before = resume.get("before", {})

    def claim(self) -> None:
        start.claim(self.directory, self.config)

    def announce(self, step: int) -> None:
        summary.announce(self.config, self.task, self.trainer, self.directory, step, self.warnings)

    @property
    def results(self) -> dict[str, Any]:
        """The scores at the best step by split; empty before the first evaluation."""
        return self.before | self.best.results if self.best.step >= 0 else {}

    @property
    def is_over(self) -> bool:
        return 0 < self.config.train.patience <= self.best.num_worse

    def batches(self, step: int) -> Generator[tuple[Stage, dict[str, jax.Array]]]:
        size, multiple = self.config.train.batch_size, self.config.data.length_multiple
        steps = range(step, self.num_steps)
        for batch in training_batches(self.rows, self.trainer, steps, size, multiple):
            yield self.stage, batch

    @property
    def evaluated_step(self) -> int:
        return self.best.last_step

    def resume_point(self, step: int) -> dict[str, Any]:
        return {"best": self.best.state(), "before": self.before}

    def is_evaluated(self, step: int) -> bool:
        if step in (0, self.num_steps):
            return step > 0 or self.task.is_scored_before
        if self.config.eval.every_steps:
            return step % self.config.eval.every_steps == 0
        # The step has the last example of an epoch.
        num_rows, size = len(self.rows), self.config.train.batch_size
        return math.floor(step * size / num_rows) > math.floor((step - 1) * size / num_rows)

    def evaluate(self, state: TrainState, recorder: Recorder, guard: PreemptionGuard) -> None:
        scores, classes, splits = {}, [], self.task.scored_splits
        for split in splits:
            rows = self.task.rows(split)
            outputs = self.outputs_of(state.params, rows, guard)
            if outputs is None:
                return
            scores[split] = self.task.score(rows, outputs)
            classes = classes or self.task.class_table(rows, outputs)
        metric, step = self.task.metric, int(state.step)
        score = scores[splits[0]][metric]
        if step:
            self.best.update(state, score, scores | {CLASSES: classes})
        else:
            self.before = {f"before_{split}": values for split, values in scores.items()}
            self.best.last_step = 0
        line = {
            score_name(splits, split, name): value
            for split, values in scores.items()
            for name, value in values.items()
        }
        best = f"best: step {self.best.step:,}" if step else "before training"
        text = f"validation {metric} {score_text(score)} ({best})"
        recorder.log_evaluation(step, line, text)

    def outputs_of(
        self, params: Any, rows: TokenRows, guard: PreemptionGuard
    ) -> dict[str, Any] | None:
        """Computes the model's outputs for all rows; None if the run must stop."""
        size, multiple = self.config.eval.batch_size, self.config.data.length_multiple
        return predict(self.trainer, params, rows, size, guard.poll, multiple)

    def end(self, step: int, times: dict[str, float | None]) -> dict[str, Any]:
        for split in self.task.scored_splits:
            for warning in self.task.warnings_of(self.results[split]):
                say(f"warning: {split}: {warning}")
        results = {
            "task": self.task.name,
            "metric": self.task.metric,
            "score": self.best.score,
            "best_step": self.best.step,
            "step": step,
            "stopped_early": step < self.num_steps,
            BASELINE: self.task.baseline(self.task.rows(self.task.scored_splits[0])),
        }
        return results | self.results | times

    def predict_splits(
        self, results: dict[str, Any], guard: PreemptionGuard
    ) -> dict[str, Any] | None:
        shapes = self.trainer.abstract_state().params
        predict_rows = functools.partial(self.outputs_of, guard=guard)
        scores = predictions.write_predictions(
            self.config, self.directory, self.task, results, shapes, predict_rows
        )
        if guard.poll():
            say(f"Stopped by {guard.signal_name}: run the same command to continue.")
            return None
        return scores
