"""A run of fine-tuning: `finetune` has the same steps as `bert_jax.pretraining.train.train`."""

import functools
import math
from collections.abc import Generator
from contextlib import ExitStack, closing
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.progress import say
from bert_jax.config.command_line import ConfigSource
from bert_jax.config.finetuning import filled_in, validate
from bert_jax.finetuning import task_setup
from bert_jax.finetuning.batches import predict, training_batches
from bert_jax.finetuning.best import Best
from bert_jax.finetuning.predictions import write_predictions
from bert_jax.finetuning.summary import advise, announce, summarize
from bert_jax.finetuning.task_setup import TaskSetup
from bert_jax.parallel import multihost
from bert_jax.reports import curves
from bert_jax.reports.page import write_pages
from bert_jax.tasks.scores import score_text
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.training import start, workdir
from bert_jax.training.checkpoint import open_checkpoints
from bert_jax.training.loop import PreemptionGuard, train_loop
from bert_jax.training.metrics import BASELINE, CLASSES
from bert_jax.training.recorder import Recorder
from bert_jax.training.schedule import warmup_warnings
from bert_jax.training.stages import Stage
from bert_jax.training.state import TrainState
from bert_jax.training.tracker import Tracker, check_installed

# A larger fraction of unknown tokens gives a warning.
_MAX_UNKNOWN_FRACTION = 0.1


def finetune(
    config: ConfigDict,
    directory: epath.PathLike,
    setup: TaskSetup | None = None,
    source: ConfigSource | None = None,
) -> dict[str, Any] | None:
    """Runs or resumes fine-tuning, up to the end of the last epoch.

    Args:
      directory: The work directory. It gets config.json, tokenizer/, checkpoints/, best/,
        metrics.jsonl, tensorboard/, and at the end curves.png, results.json and report.html.
      setup: The result of `task_setup.open_task_setup`, if several runs share it (a sweep).

    Returns:
      The contents of results.json, or None if the run was stopped before its end.
    """
    path, is_first, is_in_sweep = epath.Path(directory), multihost.is_first(), setup is not None
    # The config of a finished run may come from others and name any file or bucket. With --workdir
    # alone, only the work directory is opened.
    if source and source.is_stored and not source.flags and not config.eval.predict:
        newest = workdir.newest_checkpoint(path)
        if results := multihost.run_on_process_zero(_finished, path, newest):
            return results
    with ExitStack() as stack:
        # Config and input: lock the directory, read the weights and the data, and check everything
        # that can be checked before any work.
        validate(config)
        with multihost.agreed():
            stack.enter_context(start.lock(directory))
            setup = setup or task_setup.open_task_setup(config, directory)
            run = FinetuningRun(config, path, setup)
        guard = stack.enter_context(PreemptionGuard())

        # The results of a finished run are printed again; only its predictions may be missing.
        identity = setup.data_identity, setup.tokenizer, None
        multihost.run_on_process_zero(start.claim_corpus, path, *identity)
        results = multihost.run_on_process_zero(_finished, path, run.num_steps, not is_in_sweep)
        if not results:
            # State: from a checkpoint, or the encoder of the weights with a new head.
            checkpointer = stack.enter_context(closing(open_checkpoints(path, run.config)))
            state, resume = checkpointer.restore_newest(run.trainer.abstract_state()) or (
                task_setup.first_state(run.config, run.trainer, setup),
                {},
            )
            step = int(state.step)
            run.best = Best(path, resume.get("best", {}))
            run.before = resume.get("before", {})
            stack.enter_context(closing(run.best))
            multihost.run_on_process_zero(start.claim, path, run.config)
            announce(run.config, run.task, run.trainer, path, step, run.warnings)

            # Loop.
            tracker = stack.enter_context(Tracker(run.config, path))
            step, times = train_loop(run, state, resume, checkpointer, guard, tracker)
            if guard.requested:
                return None

            # Results.
            results = {
                "task": run.task.name,
                "metric": run.task.metric,
                "score": run.best.score,
                "best_step": run.best.step,
                "step": step,
                "stopped_early": step < run.num_steps,
                BASELINE: run.task.baseline(run.task.rows(run.splits[0])),
            }
            results |= run.results | times
            if is_first:
                files.write_json(path / workdir.RESULTS, results)
                write_pages(path)
                tracker.summarize(results)
                _show(results, path, not is_in_sweep)

        # Predict with the best checkpoint.
        shapes = run.trainer.abstract_state().params
        predict_rows = functools.partial(run.predict, guard=guard)
        scores = write_predictions(run.config, path, run.task, results, shapes, predict_rows)
        if scores and is_first:
            # The report was written before the scores of the test split were known.
            write_pages(path)
        if guard.poll():
            say(f"Stopped by {guard.signal_name}: run the same command to continue.")
            return None
        return results | scores


class FinetuningRun:
    """The batches and evaluations of fine-tuning; see `Run` for what the loop does with them."""

    label = "finetune"
    best: Best

    def __init__(self, config: ConfigDict, directory: epath.Path, setup: TaskSetup):
        self.task, self.directory = setup.task, directory
        described = setup.model, self.task.head, self.task.labels, setup.family
        # What dtype=auto means does not change in a work directory.
        dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
        if (directory / workdir.CONFIG).exists():
            dtype = workdir.load_config(directory).dtype
        self.config = filled_in(config, *described, dtype=dtype)
        self.warnings = start.check(directory, self.config)
        self.warnings += task_setup.read_rows(self.config, self.task)
        self.rows = self.task.rows("train")
        task_setup.check_segments(self.config, self.rows)
        self.before: dict[str, Any] = {}
        # Training may make an encoder for embeddings worse.
        self.is_scored_before = self.task.head == "embedding"
        if self.is_scored_before:
            self.warnings += task_setup.check_embedding(self.config, self.rows)
        self.stage = task_setup.make_stage(self.config, self.rows)
        self.num_steps = self.stage.num_steps
        check_installed(self.config)
        self.trainer = task_setup.make_trainer(
            self.config, self.stage, task_setup.class_weights(self.config, self.task)
        )
        self.warnings += warmup_warnings([self.stage])
        if self.rows.unknown_fraction > _MAX_UNKNOWN_FRACTION:
            is_protein = setup.tokenizer.kind == "protein"
            advice = (
                "write proteins in upper case" if is_protein else "take a model for this language"
            )
            self.warnings.append(
                f"{self.rows.unknown_fraction:.0%} of the tokens of the training examples are "
                f"unknown to the vocabulary of the model {config.init_from}; {advice}"
            )

    @property
    def results(self) -> dict[str, Any]:
        """The scores at the best step by split; empty before the first evaluation."""
        return self.before | self.best.results if self.best.step >= 0 else {}

    @property
    def is_over(self) -> bool:
        return 0 < self.config.train.patience <= self.best.num_worse

    @property
    def splits(self) -> list[str]:
        """The splits that are scored; the first decides which checkpoint is the best."""
        return [split for split in self.task.splits if split.startswith("validation")]

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
            return step > 0 or self.is_scored_before
        if self.config.eval.every_steps:
            return step % self.config.eval.every_steps == 0
        # The step has the last example of an epoch.
        num_rows, size = len(self.rows), self.config.train.batch_size
        return math.floor(step * size / num_rows) > math.floor((step - 1) * size / num_rows)

    def evaluate(self, state: TrainState, recorder: Recorder, guard: PreemptionGuard) -> None:
        scores, classes = {}, []
        for split in self.splits:
            rows = self.task.rows(split)
            outputs = self.predict(state.params, rows, guard)
            if outputs is None:
                return
            scores[split] = self.task.score(rows, outputs)
            classes = classes or self.task.class_table(rows, outputs)
        metric, step = self.task.metric, int(state.step)
        score = scores[self.splits[0]][metric]
        if step:
            self.best.update(state, score, scores | {CLASSES: classes})
        else:
            self.before = {f"before_{split}": values for split, values in scores.items()}
            self.best.last_step = 0
        line = {
            curves.score_name(self.splits, split, name): value
            for split, values in scores.items()
            for name, value in values.items()
        }
        best = f"best: step {self.best.step:,}" if step else "before training"
        text = f"validation {metric} {score_text(score)} ({best})"
        recorder.log_evaluation(step, line, text)

    def predict(
        self, params: Any, rows: TokenRows, guard: PreemptionGuard
    ) -> dict[str, Any] | None:
        """Computes the model's outputs for all rows; None if the run must stop."""
        size, multiple = self.config.eval.batch_size, self.config.data.length_multiple
        return predict(self.trainer, params, rows, size, guard.poll, multiple)


def _finished(
    directory: epath.Path, last_step: int | None, with_advice: bool = True
) -> dict[str, Any] | None:
    """Reprints and returns the results of a run whose last step is done; None otherwise."""
    if not (directory / workdir.RESULTS).exists():
        return None
    results = files.read_json(directory / workdir.RESULTS)
    if results.get("step") != last_step and not results.get("stopped_early"):
        return None
    say(f"This run is finished: step {results['step']:,} is done.")
    if not (directory / workdir.REPORT).exists():
        # The process was killed before it wrote the pages.
        write_pages(directory)
    _show(results, directory, with_advice)
    return results


def _show(results: dict[str, Any], directory: epath.Path, with_advice: bool) -> None:
    """Prints the results and what to do next; a sweep has its own report and advice."""
    summarize(results, directory)
    if with_advice:
        print(f"report       {directory / workdir.REPORT}")
        config = workdir.load_config(directory)
        advise(config, config.head, directory)
