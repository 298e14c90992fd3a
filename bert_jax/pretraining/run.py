"""A run of pre-training: `train` is the run from top to bottom.

A run of fine-tuning has the same steps (`bert_jax.finetuning.run.finetune`).
"""

import itertools
from collections.abc import Generator
from contextlib import ExitStack, closing
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config import check_batch, prediction_warnings
from bert_jax.config.command_line import ConfigSource
from bert_jax.interop.families import load_family
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import head_labels
from bert_jax.objectives.language_model import FILLED_TEXTS, MaskedTokenPrediction
from bert_jax.parallel import multihost
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.pretraining import evaluation, settings, start
from bert_jax.pretraining.build import make_trainer
from bert_jax.pretraining.input import (
    RunInput,
    heldout_characters_per_token,
    open_run_input,
    stream_spec,
)
from bert_jax.pretraining.summary import announce, summarize
from bert_jax.reports.page import write_pages
from bert_jax.store.token_store import TokenStore
from bert_jax.training import workdir
from bert_jax.training.loop import PreemptionGuard, train_loop
from bert_jax.training.metrics import BEFORE, OTHER_TEXT, evaluation_at, read_results
from bert_jax.training.objective import make_objective
from bert_jax.training.recorder import Recorder
from bert_jax.training.stages import Stage, model_keys, stage_of
from bert_jax.training.state import TrainState
from bert_jax.training.tracker import Tracker, check_installed
from bert_jax.training.trainer import Trainer, check_memory


def train(
    config: ConfigDict, directory: epath.PathLike, source: ConfigSource | None = None
) -> dict[str, Any] | None:
    """Runs or resumes pre-training, up to the last step of the config.

    Args:
      config: A validated config. Values that a given token store, a teacher or the weights of
        config.init_from determine are filled in.
      directory: The work directory. It gets config.json, tokenizer/, data/ (unless
        config.data.store is elsewhere), checkpoints/, metrics.jsonl, tensorboard/, and at
        the end results.json, curves.png and report.html.
      source: The file and the flags that the config comes from, if any.

    Returns:
      The final held-out results (empty if nothing is held out), or None if a signal
      stopped the run before its end.

    Raises:
      UserError: Any problem that the user can fix.
    """
    path, is_first = epath.Path(directory), multihost.is_first()
    origin = source or ConfigSource("the given config", config)
    with ExitStack() as stack:
        # The config of a finished run may come from others and name any file or bucket. With
        # --workdir alone, only the work directory is opened.
        if origin.is_stored and not origin.flags:
            newest = workdir.newest_checkpoint(path)
            if results := multihost.run_on_process_zero(_finished, config, path, newest):
                return results

        # Config: add what the initial weights, the teacher or a given store determine, check
        # everything that can be checked before any work, and lock the directory.
        with multihost.agreed():
            config, pretrained, teacher = settings.complete(config, directory, origin)
            trainer = make_trainer(config, teacher=teacher)
            warnings = _check(config, directory, trainer)
            stack.enter_context(workdir.lock(directory))
            start.check(config, directory, trainer, pretrained, teacher)
        settings.print_differences(config, origin)

        # Input: it may take hours to prepare.
        run_input = open_run_input(config, directory)

        # State: from a checkpoint, from weights or from the seed.
        guard = stack.enter_context(PreemptionGuard())
        checkpointer = stack.enter_context(closing(start.open_checkpoints(config, directory)))
        state, resume = start.first_state(
            config, directory, trainer, checkpointer, pretrained, teacher, run_input.tokenizer
        )
        step = int(state.step)
        run = PretrainingRun(config, path, trainer, run_input, resume, pretrained)
        if results := multihost.run_on_process_zero(_finished, config, path, step):
            return results
        # The config is written only now, because opening the input may fail.
        multihost.run_on_process_zero(start.claim, config, directory, origin, pretrained)
        reports = run_input.reports(config, trainer.stages) if is_first else []
        announce(config, trainer, run_input, directory, step, warnings, reports, origin)

        # Loop.
        tracker = stack.enter_context(Tracker(config, path))
        step, times = train_loop(run, state, resume, checkpointer, guard, tracker)
        if guard.requested:
            return None

        # Results.
        results = run.results | {"step": step} | times | {"corpus": reports}
        if is_first:
            if config.init_from and (before := evaluation_at(path, 0)):
                results[BEFORE] = before
            files.write_json(path / workdir.RESULTS, results)
            write_pages(path)
            tracker.summarize(results)
            summarize(config, trainer.objective.metrics, results, path)
        return results


class PretrainingRun:
    """The batches and evaluations of pre-training; see `Run` for what the loop does with them.

    Args:
      resume: What the checkpoint that the run continues from stores beside the state; empty for a
        new run.
      pretrained: The model of `config.init_from`, if the run begins with it.

    Attributes:
      results: The results of the latest evaluation; empty if there was none since the start.

    Raises:
      UserError: The config needs held-out text, but there is none.
    """

    label = "train"
    advice = (
        "set a smaller --config.train.num_steps, take a smaller model (--config=mini_laptop takes "
        "about an hour on two CPU cores), or use more or faster devices"
    )

    def __init__(
        self,
        config: ConfigDict,
        directory: epath.Path,
        trainer: Trainer,
        run_input: RunInput,
        resume: dict[str, Any],
        pretrained: Pretrained | None = None,
    ):
        if config.eval.other_text and not run_input.heldout:
            raise UserError(
                "config.eval.other_text needs held-out documents, but there are none: the corpus "
                "is too small, or config.data.heldout_fraction is 0"
            )
        self.config, self.directory, self.trainer = config, directory, trainer
        self.num_steps = config.train.num_steps
        self.evaluated_step = resume.get("evaluated_step", -1)
        self.results: dict[str, Any] = {}
        self._input, self._resume = run_input, resume
        untrained = pretrained.untrained_heads if pretrained else ()
        self._begins_with_random_guesses = any(
            label in untrained
            for name, term in zip(config.objective.terms, trainer.objective.terms, strict=True)
            if isinstance(term, MaskedTokenPrediction)
            for label in head_labels(trainer.model_config, [name]).values()
        )
        if run_input.heldout:
            self._token_counts = evaluation.counts_by_source(run_input.train)

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
                # `put` reads ahead. Without the limit, tf.data would end in the middle of a step,
                # which takes seconds.
                for batch in self.trainer.put(itertools.islice(rows, num_steps)):
                    self._stage, self._stream = stage, stream
                    yield stage, batch

    def describe_batch(self, step: int) -> dict[str, Any]:
        return self._stream.describe_batch(step - 1 - self._stage.first_step)

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
        stage = stage_of(trainer.stages, step) if step else trainer.stages[-1]
        # At step 0, random weights need no score: one batch is enough.
        is_trial = not step and not self.config.init_from

        def score(
            store: TokenStore, token_counts: dict[str, np.ndarray], characters_per_token: float
        ) -> dict[str, Any]:
            return evaluation.evaluate(
                trainer.with_model(model_keys(trainer.stages, step)),
                state.params,
                stage,
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
        if not step and self._begins_with_random_guesses:
            results.pop(FILLED_TEXTS, None)
        self.results, self.evaluated_step = results, step
        text = evaluation.progress_text(trainer.objective.metrics, results)
        recorder.log_evaluation(step, results, text)


def _check(config: ConfigDict, directory: epath.PathLike, trainer: Trainer) -> list[str]:
    """Checks the batch size, memory, wandb and the work directory; returns warnings."""
    check_installed(config)
    check_batch(config, num_data_shards(trainer.mesh), jax.process_count())
    if not workdir.has_checkpoints(directory):
        # A run with checkpoints has fitted into memory before, or only prints its results.
        check_memory(trainer, config.train.gradient_accumulation_steps)
    return [*workdir.check(directory, config), *prediction_warnings(config)]


def _finished(config: ConfigDict, directory: epath.Path, step: int | None) -> dict[str, Any] | None:
    """Reprints and returns the results of a finished run; None if it is not finished.

    Args:
      step: The step of the newest checkpoint.
    """
    # A family from outside is refused, as in a run that is not finished.
    load_family(config.family)
    metrics = make_objective(config).metrics
    try:
        results = read_results(directory, metrics)
    except (FileNotFoundError, UserError):
        # If the file is damaged, evaluating again rewrites it.
        return None
    num_steps = config.train.num_steps
    if results["step"] != step or step < num_steps:
        return None
    # A process may have been killed before it wrote the pages.
    if not (directory / workdir.REPORT).exists():
        write_pages(directory)
    say(
        f"This run is finished: step {step:,} of {num_steps:,} is done. To train it further, "
        f"set a config.train.num_steps above {num_steps:,}."
    )
    with files.naming(directory / workdir.RESULTS):
        summarize(config, metrics, results, directory)
    return results
