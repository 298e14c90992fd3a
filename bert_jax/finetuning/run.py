"""The fine-tuning loop, from weights and a task to a scored work directory."""

import dataclasses
import math
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax import files, workdir
from bert_jax.config import check_profile
from bert_jax.config.finetuning import filled_in, validate
from bert_jax.errors import UserError
from bert_jax.finetuning import task_setup
from bert_jax.finetuning.example_order import ExampleOrder, predict, training_batches
from bert_jax.finetuning.summary import advise, announce, summarize
from bert_jax.finetuning.task_setup import Setting
from bert_jax.non_finite import non_finite
from bert_jax.parallel import multihost
from bert_jax.progress import Progress, say
from bert_jax.tasks.task import Rows
from bert_jax.training import curves
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.preemption import PreemptionGuard
from bert_jax.training.profiler import StepProfiler
from bert_jax.training.recorder import NonFiniteError, Recorder
from bert_jax.training.state import TrainState

PREDICTIONS = "predictions"
# The SHA-256 of the rows that each of these is of; not among them, which are handed in.
PREDICTED = "predicted.json"


@dataclasses.dataclass
class Best:
    """The best scores so far, and the last step that was scored; a checkpoint holds it.

    Attributes:
      step: Whose scores they are; -1 before the first.
      scores: Of each validation split, by its name.
      last_step: The last that was scored.
    """

    step: int = -1
    scores: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    last_step: int = -1


def finetune(
    config: ConfigDict, directory: epath.PathLike, setting: Setting | None = None
) -> dict[str, Any] | None:
    """Fine-tunes to the end of the last epoch, or goes on from where a run was stopped.

    Args:
      config: As the files in configs/finetune/ make them.
      directory: The work directory. It gets config.json, tokenizer/, checkpoints/, best/,
        metrics.jsonl, tensorboard/, and at the end results.json and curves.png.
      setting: What `task_setup.open_setting` gives, where several runs share it.

    Returns:
      What results.json holds; None when the run was asked to stop before.

    Raises:
      UserError: whatever the user can mend, in one sentence.
    """
    with ExitStack() as stack:

        def opened() -> Run:
            validate(config)
            files.open_path(directory, "--workdir")
            stack.enter_context(workdir.lock(directory))
            own = setting or task_setup.open_setting(config, directory)
            return Run(config, directory, own, is_one_of_many=setting is not None)

        return multihost.run_on_all(opened).to_the_end()


class Run:
    """One run of fine-tuning: all that its loop needs.

    Attributes:
      is_one_of_many: Of a sweep, which tells itself what to do with the best of them.

    Raises:
      UserError: the work directory is another run's, or something does not fit.
    """

    def __init__(
        self,
        config: ConfigDict,
        directory: epath.PathLike,
        setting: Setting,
        *,
        is_one_of_many: bool = False,
    ):
        self.task, self.setting = setting.task, setting
        self.is_one_of_many = is_one_of_many
        self.directory = epath.Path(directory)
        self.config = filled_in(config, setting.model, self.task.head, self.task.labels)
        self.warnings = workdir.check(directory, self.config)
        task_setup.read_rows(self.config, self.task)
        self.train_rows = self.task.rows("train")
        task_setup.check_segments(self.config, self.train_rows)
        self.stage = task_setup.make_stage(self.config, self.train_rows)
        self.order = ExampleOrder(
            self.train_rows,
            batch_size=config.train.batch_size,
            num_steps=self.stage.num_steps,
            seed=config.seed,
            window=config.data.group_by_length,
        )
        check_profile(self.config.profile, self.stage.num_steps)
        self.trainer = task_setup.make_trainer(self.config, self.stage)

    @property
    def num_steps(self) -> int:
        return self.stage.num_steps

    @property
    def validation_splits(self) -> list[str]:
        """Those that are scored; the best checkpoint is judged by the first."""
        return [split for split in self.task.splits if split.startswith("validation")]

    def to_the_end(self) -> dict[str, Any] | None:
        """Trains, scores and predicts what is still to be done."""
        with PreemptionGuard() as guard:
            results = multihost.run_on_process_zero(self._finished) or self._train(guard)
            if results:
                self._write_predictions(guard.poll)
            if results and guard.poll():
                say(f"Stopped by {guard.signal_name}: the same command does what is left.")
                return None
            return results

    def _train(self, guard: PreemptionGuard) -> dict[str, Any] | None:
        """Trains and scores; None when stopped."""
        config, directory, trainer = self.config, self.directory, self.trainer
        with closing(self._checkpoints()) as checkpointer:
            own = checkpointer.restore_newest(trainer.abstract_state())
            state, resume = own or (task_setup.initial_state(config, trainer, self.setting), {})
            step, best = int(state.step), Best(**resume.get("best", {}))
            multihost.run_on_process_zero(lambda: self._claim(step))
            announce(config, self.task, trainer, self.num_steps, directory, step, self.warnings)
            first = multihost.is_first()
            progress = Progress("finetune", self.num_steps, "steps", done=step, enabled=first)
            with (
                progress,
                closing(MetricsWriter(directory, resumed_step=step, enabled=first)) as writer,
                # With the one before: a process killed now goes back beyond the newest.
                closing(Checkpointer(directory / workdir.BEST, keep=2)) as best_checkpoints,
            ):
                recorder = Recorder(trainer, writer, progress, resume.get("meter", {}))
                if best.step >= 0 and best.step not in multihost.run_on_process_zero(
                    best_checkpoints.steps
                ):
                    # Better ones came after the run's own checkpoint, and were lost with it.
                    best = Best(last_step=best.last_step if step < self.num_steps else -1)
                if step and self._is_scored(step) and best.last_step < step:
                    # The signal that stopped the run came before the score.
                    self._judge(state, best, best_checkpoints, recorder, guard)
                batches = training_batches(
                    self.train_rows,
                    self.order,
                    trainer,
                    first_step=step,
                    # Stopped while it was scored: as it was, the next start scores it.
                    end_step=step if guard.poll() else self.num_steps,
                    length_multiple=config.data.length_multiple,
                )
                profiler = StepProfiler(
                    directory / workdir.PROFILE,
                    **config.profile,
                    done=step,
                    say=progress.message,
                    paused=recorder.paused,
                    enabled=first,
                )
                for batch in batches:
                    try:
                        # Dispatched before the metrics of the step before are read.
                        state, metrics = profiler.run(step + 1, trainer.train_step, state, batch)
                        step += 1
                        last = step == self.num_steps
                        length = batch["input_ids"].shape[-1]
                        recorder.dispatched(step, self.stage, metrics, length)
                        if step % config.log.every_steps == 0 or last:
                            recorder.log(step)
                        if self._is_scored(step) and not guard.poll():
                            with recorder.paused():
                                self._judge(state, best, best_checkpoints, recorder, guard)
                        stop = guard.poll()
                        if step % config.checkpoint.every_steps == 0 or last or stop:
                            with recorder.paused():
                                resume = {
                                    "meter": recorder.state(),
                                    "best": dataclasses.asdict(best),
                                }
                                # No checkpoint may be newer than the lines of its steps.
                                writer.flush()
                                checkpointer.save(step, state, resume)
                    except NonFiniteError as error:
                        raise self._non_finite(error, checkpointer) from error
                    if stop:
                        break
                profiler.close()
                checkpointer.wait()
                if guard.requested:
                    progress.message(
                        f"Stopped by {guard.signal_name}: the checkpoint of step {step:,} is "
                        "saved; the same command goes on from it."
                    )
                    return None
        results = self._results(best, recorder.run_sequences_per_second())
        if first:
            files.write_json(directory / workdir.RESULTS, results)
            self._draw(best)
            self._summarize(results)
        return results

    def _checkpoints(self) -> Checkpointer:
        return Checkpointer(
            self.directory / workdir.CHECKPOINTS,
            keep=self.config.checkpoint.keep,
            keep_every_steps=self.config.checkpoint.keep_every_steps,
        )

    def _claim(self, step: int) -> None:
        """Makes the directory this run's, and takes out what a killed process did beyond `step`."""
        workdir.claim(self.directory, self.config)
        self._claim_data()
        folder = self.directory / workdir.BEST
        for path in folder.iterdir() if folder.exists() else ():
            # It will be saved again; the newest is taken for the best.
            if path.name.isdecimal() and int(path.name) > step:
                files.remove_directory(path)

    def _claim_data(self) -> None:
        """Refuses data that are not those the run began with."""
        setting = self.setting
        workdir.claim_corpus(self.directory, setting.data_identity, setting.tokenizer, None)

    def _is_scored(self, step: int) -> bool:
        """Whether the validation split is scored after this step."""
        if step == self.num_steps:
            return True
        if self.config.eval.every_steps:
            return step % self.config.eval.every_steps == 0
        # The steps in which an epoch's last example is.
        per_epoch, size = len(self.train_rows), self.config.train.batch_size
        return math.floor(step * size / per_epoch) > math.floor((step - 1) * size / per_epoch)

    def _judge(
        self,
        state: TrainState,
        best: Best,
        checkpoints: Checkpointer,
        recorder: Recorder,
        guard: PreemptionGuard,
    ) -> None:
        """Scores the state, and keeps it where it is the best; does nothing when stopped."""
        step, scores = int(state.step), {}
        for split in self.validation_splits:
            rows = self.task.rows(split)
            outputs = self._predict(state.params, rows, guard.poll)
            if outputs is None:
                return
            scores[split] = self.task.score(split, outputs)
        judged = self.validation_splits[0]
        score = scores[judged][self.task.metric]
        if best.step < 0 or score > best.scores[judged][self.task.metric]:
            if step not in checkpoints.steps():
                checkpoints.save(step, TrainState(state.step, state.params, opt_state=()), {})
                # It must not be newer than the run's own checkpoint says.
                checkpoints.wait()
            best.step, best.scores = step, scores
        best.last_step = step
        line = {
            self._logged_name(split, name): value
            for split, values in scores.items()
            for name, value in values.items()
        }
        recorder.log_evaluation(
            step, line, f"validation {self.task.metric} {score:.4f} (best: step {best.step:,})"
        )

    def _logged_name(self, split: str, name: str) -> str:
        """What a score is called in metrics.jsonl: that of other splits with theirs before."""
        if split == self.validation_splits[0]:
            return name
        return f"{split.removeprefix('validation_')}_{name}"

    def _draw(self, best: Best) -> None:
        """Writes curves.png."""
        metric = self.task.metric
        scores = {f"eval_{self._logged_name(s, metric)}": s for s in self.validation_splits}
        has_accuracy = "accuracy" in self.trainer.objective.averaged
        panels = curves.fine_tuning(metric, scores, best.step, has_accuracy)
        curves.write_curves(self.directory, self.directory / workdir.CURVES, panels)

    def _predict(
        self, params: Any, rows: Rows, stop: Callable[[], bool] = lambda: False
    ) -> dict[str, Any] | None:
        multiple = self.config.data.length_multiple
        return predict(self.trainer, params, rows, self.config.eval.batch_size, stop, multiple)

    def _unpredicted(self) -> dict[str, str]:
        """Splits whose predictions are asked for and not there, with what tells their rows."""
        folder = self.directory / PREDICTIONS
        predicted = self._predicted_rows()
        asked = {
            split: task_setup.rows_fingerprint(self.task.rows(split))
            for split in task_setup.predicted_splits(self.config, self.task)
        }
        for split, fingerprint in asked.items():
            if predicted.get(split, fingerprint) != fingerprint:
                say(f"the rows of the {split} split are others than before: predicted anew")
        return {
            split: fingerprint
            for split, fingerprint in asked.items()
            if predicted.get(split) != fingerprint
            or not (folder / self.task.predictions_name(split)).exists()
        }

    def _predicted_rows(self) -> dict[str, str]:
        """What tells the rows that predictions were written of, of each split."""
        try:
            return files.read_json(self.directory / PREDICTED)
        except (FileNotFoundError, UserError):
            # None were written; or it is damaged, and they are written anew.
            return {}

    def _write_predictions(self, stop: Callable[[], bool]) -> None:
        """Predicts with the best checkpoint what is asked for, until told to stop."""
        splits = multihost.run_on_process_zero(self._unpredicted)
        if not splits:
            return
        abstract = self.trainer.abstract_state().params
        with closing(Checkpointer(self.directory / workdir.BEST, read_only=True)) as checkpoints:
            restored = checkpoints.restore_params(abstract)
        if restored is None:
            say(
                f"warning: no predictions are written: the best weights of {self.directory} are "
                "not there any more"
            )
            return
        _, params = restored
        (self.directory / PREDICTIONS).mkdir(parents=True, exist_ok=True)
        for split, fingerprint in splits.items():
            rows = self.task.rows(split)
            outputs = self._predict(params, rows, stop)
            if outputs is None:
                return
            if multihost.is_first():
                path = self.directory / PREDICTIONS / self.task.predictions_name(split)
                self.task.write_predictions(split, outputs, path)
                noted = self._predicted_rows() | {split: fingerprint}
                files.write_json(self.directory / PREDICTED, noted)
                say(f"predictions of the {split} split written to {path}")

    def _results(self, best: Best, sequences_per_second: float | None) -> dict[str, Any]:
        scores = best.scores[self.validation_splits[0]]
        return {
            "task": self.task.name,
            "metric": self.task.metric,
            "score": scores[self.task.metric],
            "best_step": best.step,
            "step": self.num_steps,
            **best.scores,
            "train_sequences_per_second": sequences_per_second,
        }

    def _finished(self) -> dict[str, Any] | None:
        """The results of a run that is at its end, told once more."""
        path = self.directory / workdir.RESULTS
        if not path.exists():
            return None
        self._claim_data()
        try:
            results = files.read_json(path)
            if results["step"] != self.num_steps:
                return None
            say(f"This run is finished: step {self.num_steps:,} is done.")
            self._summarize(results)
        except (UserError, KeyError, TypeError):
            # Damaged: it is written anew.
            return None
        return results

    def _summarize(self, results: dict[str, Any]) -> None:
        summarize(results, self.directory)
        if not self.is_one_of_many:
            advise(self.config, self.directory)

    def _non_finite(self, error: NonFiniteError, checkpointer: Checkpointer) -> Exception:
        rows_B = self.order.rows_of_step(error.step - 1)
        batch = {"split": "train", "rows": rows_B.tolist()}
        return non_finite(error, self.directory, batch, checkpointer)
