"""A run of fine-tuning, from its config to its results.

`finetune` and `_train` follow the same steps as `bert_jax.pretraining.run.train`.
"""

import math
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config import check_profile
from bert_jax.config.command_line import ConfigSource
from bert_jax.config.finetuning import filled_in, validate
from bert_jax.finetuning import task_setup
from bert_jax.finetuning.example_order import ExampleOrder, predict, training_batches
from bert_jax.finetuning.predictions import write_predictions
from bert_jax.finetuning.summary import advise, announce, summarize
from bert_jax.finetuning.task_setup import TaskSetup
from bert_jax.parallel import multihost
from bert_jax.pretraining import settings
from bert_jax.pretraining.start import open_checkpoints
from bert_jax.reports import curves
from bert_jax.reports.page import write_pages
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.training import workdir
from bert_jax.training.best import Best
from bert_jax.training.loop import PreemptionGuard, train_loop
from bert_jax.training.metrics import read_results
from bert_jax.training.recorder import Recorder, recording
from bert_jax.training.schedule import warmup_warnings
from bert_jax.training.stages import Stage
from bert_jax.training.state import TrainState

# A run with a larger fraction of unknown tokens gets a warning.
_MOST_UNKNOWN = 0.1


def finetune(
    config: ConfigDict,
    directory: epath.PathLike,
    setup: TaskSetup | None = None,
    source: ConfigSource | None = None,
) -> dict[str, Any] | None:
    """Runs or resumes fine-tuning, up to the end of the last epoch.

    Args:
      config: A config like those of configs/finetune/.
      directory: The work directory. It receives config.json, tokenizer/, checkpoints/, best/,
        metrics.jsonl, tensorboard/, and at the end curves.png, results.json and report.html.
      setup: The result of `task_setup.open_task_setup`, if several runs share it.
      source: The file and the flags that the config comes from, if any.

    Returns:
      The contents of results.json, or None if the run was stopped before its end.

    Raises:
      UserError: Any problem that the user can fix.
    """
    with ExitStack() as stack:
        # The directory stays locked until the results are written.
        run = multihost.run_on_all(lambda: _open_run(config, directory, setup, stack))
        if source:
            run.warnings = settings.unasked(run.warnings, source)
        guard = stack.enter_context(PreemptionGuard())
        results = multihost.run_on_process_zero(lambda: _finished(run))
        if not results:
            is_stored = source is None or source.is_stored
            differences = None if is_stored else settings.differences(config, source)
            results = _train(run, guard, differences)
        if not results:
            return None
        scores = write_predictions(
            run.config,
            run.directory,
            run.task,
            run.trainer.abstract_state().params,
            lambda params, rows: run.predict(params, rows, guard),
        )
        if scores and multihost.is_first():
            # The report was written before the scores of the test split were known.
            write_pages(run.directory)
        if guard.poll():
            say(f"Stopped by {guard.signal_name}: run the same command to continue.")
            return None
        return results | scores


def _open_run(
    config: ConfigDict, directory: epath.PathLike, setup: TaskSetup | None, stack: ExitStack
) -> "FinetuningRun":
    """Checks everything that can be checked before any work is done, and locks the directory."""
    validate(config)
    files.checked_path(directory, "--workdir")
    stack.enter_context(workdir.lock(directory))
    is_in_sweep = setup is not None
    setup = setup or task_setup.open_task_setup(config, directory)
    return FinetuningRun(config, directory, setup, is_in_sweep=is_in_sweep)


def _train(
    run: "FinetuningRun", guard: PreemptionGuard, differences: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Trains and scores; returns None if the run was stopped."""
    config, directory, trainer = run.config, run.directory, run.trainer
    with ExitStack() as stack:
        checkpointer = stack.enter_context(closing(open_checkpoints(config, directory)))

        # Start or continue.
        state, resume = checkpointer.restore_newest(trainer.abstract_state()) or (
            task_setup.first_state(config, trainer, run.setup),
            {},
        )
        step = int(state.step)

        def claim() -> None:
            run.claim_data()
            workdir.claim(directory, config, differences)

        multihost.run_on_process_zero(claim)
        run.best = best = Best(directory, keeps=True, state=resume.get("best", {}))
        stack.enter_context(closing(best))
        announce(config, run.task, trainer, directory, step, run.warnings)

        # Train.
        with recording(*("finetune", config, trainer, directory, run.num_steps, step, resume)) as (
            recorder,
            profiler,
        ):
            train_loop(
                run,
                state,
                recorder=recorder,
                profiler=profiler,
                checkpointer=checkpointer,
                guard=guard,
            )
        if guard.requested:
            return None

        results = {
            "task": run.task.name,
            "metric": run.task.metric,
            "score": best.score,
            "best_step": best.step,
            "step": run.num_steps,
            **best.results,
            **recorder.times(),
        }
        if multihost.is_first():
            # The results are written last, because a run that has them is not started again.
            files.write_json(directory / workdir.RESULTS, results)
            write_pages(directory)
            run.summarize(results)
        return results


class FinetuningRun:
    """A run of fine-tuning; see `Run` for what the loop does with it.

    Attributes:
      best: The best scores on the first validation split.

    Raises:
      UserError: The work directory belongs to another run, or the options do not fit.
    """

    def __init__(
        self, config: ConfigDict, directory: epath.PathLike, setup: TaskSetup, is_in_sweep: bool
    ):
        self.setup, self.task = setup, setup.task
        # A sweep prints the path of its own report and advice for its best run.
        self.is_in_sweep = is_in_sweep
        self.directory = epath.Path(directory)
        self.config = filled_in(config, setup.model, self.task.head, self.task.labels, setup.family)
        self.warnings = workdir.check(directory, self.config)
        self.warnings += task_setup.read_rows(self.config, self.task)
        self.rows = self.task.rows("train")
        task_setup.check_segments(self.config, self.rows)
        self.stage = task_setup.make_stage(self.config, self.rows)
        self.num_steps = self.stage.num_steps
        check_profile(self.config.profile, self.num_steps)
        self.trainer = task_setup.make_trainer(self.config, self.stage)
        self.warnings += warmup_warnings(self.config.schedule, [self.stage])
        if self.rows.unknown_fraction > _MOST_UNKNOWN:
            self.warnings.append(
                f"{self.rows.unknown_fraction:.0%} of the tokens of the training examples are "
                f"unknown to the vocabulary of {config.init_from}; take a model for this language"
            )
        self.order = ExampleOrder(
            self.rows,
            batch_size=config.train.batch_size,
            num_steps=self.num_steps,
            seed=config.seed,
            window=config.data.group_by_length,
        )

    def claim_data(self) -> None:
        """Refuses data that differ from those at the beginning of the run."""
        identity = self.setup.data_identity
        workdir.claim_corpus(self.directory, identity, self.setup.tokenizer, None)

    @property
    def splits(self) -> list[str]:
        """The splits that are scored; the first decides which checkpoint is the best."""
        return [split for split in self.task.splits if split.startswith("validation")]

    def batches(self, step: int) -> Generator[tuple[Stage, dict[str, jax.Array]]]:
        for batch in training_batches(
            self.rows,
            self.order,
            self.trainer,
            first_step=step,
            end_step=self.num_steps,
            length_multiple=self.config.data.length_multiple,
        ):
            yield self.stage, batch

    def describe_batch(self, step: int) -> dict[str, Any]:
        return {"split": "train", "rows": self.order.rows_of_step(step - 1).tolist()}

    def resume_point(self, step: int) -> dict[str, Any]:
        return {}

    def is_evaluated(self, step: int) -> bool:
        if step in (0, self.num_steps):
            return step > 0
        if self.config.eval.every_steps:
            return step % self.config.eval.every_steps == 0
        # The steps that hold the last example of an epoch.
        num_rows, size = len(self.rows), self.config.train.batch_size
        return math.floor(step * size / num_rows) > math.floor((step - 1) * size / num_rows)

    def evaluate(self, state: TrainState, recorder: Recorder, guard: PreemptionGuard) -> None:
        scores = {}
        for split in self.splits:
            outputs = self.predict(state.params, self.task.rows(split), guard)
            if outputs is None:
                return
            scores[split] = self.task.score(self.task.rows(split), outputs)
        metric, step = self.task.metric, int(state.step)
        score = scores[self.splits[0]][metric]
        self.best.update(state, score, scores)
        line = {
            curves.score_name(self.splits, split, name): value
            for split, values in scores.items()
            for name, value in values.items()
        }
        text = f"validation {metric} {score:.4f} (best: step {self.best.step:,})"
        recorder.log_evaluation(step, line, text)

    def predict(
        self, params: Any, rows: TokenRows, guard: PreemptionGuard
    ) -> dict[str, Any] | None:
        """Returns the model's outputs for all rows; None if the run must stop."""
        return predict(
            self.trainer,
            params,
            rows,
            batch_size=self.config.eval.batch_size,
            stop=guard.poll,
            length_multiple=self.config.data.length_multiple,
        )

    def is_over(self) -> bool:
        return False

    def summarize(self, results: dict[str, Any]) -> None:
        """Prints the results and what to do next."""
        summarize(results, self.directory)
        if not self.is_in_sweep:
            print(f"report       {self.directory / workdir.REPORT}")
            advise(self.config, self.task.head, self.directory)


def _finished(run: FinetuningRun) -> dict[str, Any] | None:
    """Reprints and returns the results of a finished run; None if it is not finished."""
    path = run.directory / workdir.RESULTS
    if not path.exists():
        return None
    run.claim_data()
    try:
        results = read_results(run.directory)
        if results["step"] != run.num_steps:
            return None
        say(f"This run is finished: step {run.num_steps:,} is done.")
        if not (run.directory / workdir.REPORT).exists():
            # The process was killed before it wrote it.
            write_pages(run.directory)
        run.summarize(results)
    except (UserError, KeyError):
        # The file is damaged and will be written again.
        return None
    return results
