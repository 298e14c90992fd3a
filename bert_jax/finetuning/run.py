"""A single run of fine-tuning."""

import math
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax import files, report, run_config, workdir
from bert_jax.command_line import ConfigSource
from bert_jax.config import check_profile
from bert_jax.config.finetuning import filled_in, validate
from bert_jax.divergence import diverged
from bert_jax.errors import UserError
from bert_jax.finetuning import task_setup
from bert_jax.finetuning.best import BestKeeper, Predict
from bert_jax.finetuning.example_order import ExampleOrder, predict, training_batches
from bert_jax.finetuning.predictions import write_predictions
from bert_jax.finetuning.summary import advise, announce, summarize
from bert_jax.finetuning.task_setup import TaskSetup
from bert_jax.initialize import initialize, open_checkpoints
from bert_jax.parallel import multihost
from bert_jax.progress import say
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.training import curves
from bert_jax.training.best import remove_later
from bert_jax.training.loop import train_loop
from bert_jax.training.preemption import PreemptionGuard
from bert_jax.training.recorder import NonFiniteError, recording
from bert_jax.training.schedule import warmup_warnings
from bert_jax.training.state import TrainState

# A run with a larger share of unknown tokens gets a warning.
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
        run = multihost.run_on_all(lambda: _open_run(config, directory, setup, stack))
        guard = stack.enter_context(PreemptionGuard())

        def predict_rows(params: Any, rows: TokenRows) -> dict[str, Any] | None:
            return predict(
                run.trainer,
                params,
                rows,
                batch_size=run.config.eval.batch_size,
                stop=guard.poll,
                length_multiple=run.config.data.length_multiple,
            )

        results = multihost.run_on_process_zero(lambda: _finished_results(run))
        differences = None
        if source and not source.is_stored:
            differences = run_config.differences(config, source)
        results = results or _train(run, guard, predict_rows, differences)
        if not results:
            return None
        params = run.trainer.abstract_state().params
        scores = write_predictions(run.config, run.directory, run.task, params, predict_rows)
        if scores and multihost.is_first() and not run.is_in_sweep:
            # The report was written before the scores of the test split were known.
            report.write_page(run.directory)
        if guard.poll():
            say(f"Stopped by {guard.signal_name}: run the same command to continue.")
            return None
        return results | scores


class _Run:
    """The parts of a fine-tuning run.

    Raises:
      UserError: The work directory belongs to another run, or the options do not fit.
    """

    def __init__(
        self, config: ConfigDict, directory: epath.PathLike, setup: TaskSetup, is_in_sweep: bool
    ):
        self.setup, self.task = setup, setup.task
        # Runs of a sweep write no report, and the sweep itself prints advice for the best one.
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
        if self.rows.unknown_share > _MOST_UNKNOWN:
            self.warnings.append(
                f"{self.rows.unknown_share:.0%} of the tokens of the training examples are unknown "
                f"to the vocabulary of {config.init_from}; take a model for this language"
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

    def is_scored(self, step: int) -> bool:
        """Returns whether the validation splits are scored after a step."""
        if step == self.num_steps:
            return True
        if self.config.eval.every_steps:
            return step % self.config.eval.every_steps == 0
        # The steps that hold the last example of an epoch.
        num_rows, size = len(self.rows), self.config.train.batch_size
        return math.floor(step * size / num_rows) > math.floor((step - 1) * size / num_rows)

    def summarize(self, results: dict[str, Any]) -> None:
        """Prints the results and writes report.html from the files of the run."""
        summarize(results, self.directory)
        if not self.is_in_sweep:
            report.write_page(self.directory)
            print(f"report       {self.directory / workdir.REPORT}")
            advise(self.config, self.directory)


def _open_run(
    config: ConfigDict, directory: epath.PathLike, setup: TaskSetup | None, stack: ExitStack
) -> _Run:
    """Checks everything that can be checked before any work is done, and locks the directory."""
    validate(config)
    files.open_path(directory, "--workdir")
    stack.enter_context(workdir.lock(directory))
    is_in_sweep = setup is not None
    setup = setup or task_setup.open_task_setup(config, directory)
    return _Run(config, directory, setup, is_in_sweep=is_in_sweep)


def _finished_results(run: _Run) -> dict[str, Any] | None:
    """Reprints and returns the results of a finished run; None if it is not finished."""
    path = run.directory / workdir.RESULTS
    if not path.exists():
        return None
    run.claim_data()
    try:
        results = files.read_json(path)
        if results["step"] != run.num_steps:
            return None
        say(f"This run is finished: step {run.num_steps:,} is done.")
        run.summarize(results)
    except (UserError, KeyError):
        # The file is damaged and will be written again.
        return None
    return results


def _train(
    run: _Run,
    guard: PreemptionGuard,
    predict_rows: Predict,
    differences: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    """Trains and scores; returns None if the run was stopped."""
    config, directory, trainer = run.config, run.directory, run.trainer
    with ExitStack() as stack:
        checkpointer = stack.enter_context(closing(open_checkpoints(config, directory)))

        # Start or continue.
        state, resume = initialize(
            trainer,
            checkpointer,
            weights=None
            if config.from_scratch
            else lambda: task_setup.read_weights(config, trainer, run.setup),
        )
        step = int(state.step)

        def claim() -> None:
            run.claim_data()
            workdir.claim(directory, config, differences)
            # A killed process may have left best checkpoints of later steps.
            remove_later(directory, step)

        multihost.run_on_process_zero(claim)
        announce(config, run.task, trainer, directory, step, run.warnings)
        recorder, profiler = stack.enter_context(
            recording("finetune", config, trainer, directory, run.num_steps, step, resume)
        )
        best = stack.enter_context(closing(BestKeeper(run.task, directory, resume.get("best", {}))))

        def evaluate(step: int, state: TrainState) -> None:
            best.judge(state, predict_rows, recorder)

        best.forget_lost(is_finished=step == run.num_steps)
        if step and run.is_scored(step) and best.last_step < step:
            # The run was stopped between this step and its evaluation.
            evaluate(step, state)
        # If the run is stopped again, the next start scores the step.
        end_step = step if guard.poll() else run.num_steps
        batches = training_batches(
            run.rows,
            run.order,
            trainer,
            first_step=step,
            end_step=end_step,
            length_multiple=config.data.length_multiple,
        )
        try:
            state = train_loop(
                config,
                trainer,
                state,
                ((run.stage, batch) for batch in batches),
                num_steps=run.num_steps,
                recorder=recorder,
                profiler=profiler,
                checkpointer=checkpointer,
                guard=guard,
                is_evaluated=run.is_scored,
                evaluate=evaluate,
                resume_point=lambda step: {"best": best.state()},
            )
        except NonFiniteError as error:
            rows_B = run.order.rows_of_step(error.step - 1)
            batch = {"split": "train", "rows": rows_B.tolist()}
            raise diverged(error, directory, batch, checkpointer) from error
        if guard.requested:
            recorder.message(
                f"Stopped by {guard.signal_name}: the checkpoint of step {int(state.step):,} is "
                "saved; run the same command to continue."
            )
            return None

    results = {
        "task": run.task.name,
        "metric": run.task.metric,
        "score": best.score,
        "best_step": best.step,
        "step": run.num_steps,
        **best.scores,
        **recorder.times(),
    }
    if multihost.is_first():
        has_accuracy = "accuracy" in trainer.objective.averaged
        panels = curves.finetuning_panels(run.task.metric, best.splits, best.step, has_accuracy)
        curves.write_curves(directory, directory / workdir.CURVES, panels)
        # The results are written last, because a run that has them is not started again.
        files.write_json(directory / workdir.RESULTS, results)
        run.summarize(results)
    return results
