"""A run of pre-training, from its config to its results.

`train` shows a run from top to bottom: checks, lock, input, start, training, results.
"""

import itertools
from collections.abc import Generator
from contextlib import ExitStack, closing
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say, say_next, terminal
from bert_jax.config import check_batch, prediction_warnings, total_steps
from bert_jax.config.command_line import ConfigSource
from bert_jax.interop.pretrained import Pretrained
from bert_jax.parallel import multihost
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.pretraining import evaluation, settings, start
from bert_jax.pretraining.build import make_trainer
from bert_jax.pretraining.input import RunInput, open_run_input, stream_spec
from bert_jax.reports import corpus_report
from bert_jax.reports.page import write_pages
from bert_jax.reports.parameters import print_parameters
from bert_jax.text.sources import BUILT_IN, split_inputs
from bert_jax.training import workdir
from bert_jax.training.best import Best
from bert_jax.training.loop import PreemptionGuard, train_loop
from bert_jax.training.metrics import read_results
from bert_jax.training.recorder import Recorder, recording
from bert_jax.training.schedule import warmup_warnings
from bert_jax.training.stages import Stage, stage_of
from bert_jax.training.state import TrainState
from bert_jax.training.trainer import Trainer, check_memory

_SLOW = (
    "set a smaller --config.train.num_steps, take a smaller model (--config=mini_laptop takes "
    "about an hour on two CPU cores), or use more or faster devices"
)


def train(
    config: ConfigDict, directory: epath.PathLike, source: ConfigSource | None = None
) -> dict[str, Any] | None:
    """Runs or resumes pre-training, up to the last step of the config.

    Args:
      config: A validated config. Values that a given token store or the weights of
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
    may_cut = source is None or _accepts_cuts(config, source)
    source = source or ConfigSource("the given config", config)
    path = epath.Path(directory)
    is_first = multihost.is_first()
    with ExitStack() as stack:
        # Everything that can be checked is checked before any work is done.
        config, trainer, teacher, pretrained, warnings = multihost.run_on_all(
            lambda: _checked(config, directory, source)
        )
        # The directory stays locked until the results are written.
        multihost.run_on_all(lambda: stack.enter_context(workdir.lock(directory)))
        multihost.run_on_all(lambda: start.check(config, directory, pretrained, teacher))
        settings.describe(config, source)
        run_input = open_run_input(config, directory, may_cut=may_cut)
        guard = stack.enter_context(PreemptionGuard())
        checkpointer = stack.enter_context(closing(start.open_checkpoints(config, directory)))

        # Start or continue.
        state, resume = start.first_state(
            config, directory, trainer, checkpointer, pretrained, teacher
        )
        step = int(state.step)
        _check_stage(config, trainer, step, resume)
        run = stack.enter_context(closing(PretrainingRun(config, path, trainer, run_input, resume)))
        if results := multihost.run_on_process_zero(lambda: _finished(run, step)):
            return results

        # The directory is claimed only now, because opening the input may fail.
        differences = None if source.is_stored else settings.differences(config, source)

        def claim() -> None:
            workdir.claim(directory, config, differences)
            start.record_length(config, directory, pretrained)

        multihost.run_on_process_zero(claim)
        reports = run_input.reports(config, trainer.stages) if is_first else []
        announce(config, trainer, run_input, directory, step, warnings, reports, source)

        # Train. Steps of later stages take longer, so progress is measured in FLOPs.
        with recording(
            *("train", config, trainer, directory, run.num_steps, step, resume),
            cost=trainer.flops_until,
            advice=_SLOW,
        ) as (recorder, profiler):
            state = train_loop(
                run,
                state,
                recorder=recorder,
                profiler=profiler,
                checkpointer=checkpointer,
                guard=guard,
            )
            if run_input.heldout and not run.results and not guard.requested:
                # The run was continued from its last step.
                run.evaluate(state, recorder, guard)
        if guard.requested:
            return None

        results = run.results | run.ending(int(state.step)) | recorder.times() | {"corpus": reports}
        if is_first:
            files.write_json(path / workdir.RESULTS, results)
            write_pages(path)
            summarize(config, trainer, results, path)
        return results


class PretrainingRun:
    """A run of pre-training; see `Run` for what the loop does with it.

    Args:
      resume: What the checkpoint that the run continues from stores beside the state; may be empty.

    Attributes:
      results: Those of the latest evaluation; empty if there was none since the start.

    Raises:
      UserError: The config needs held-out text, but there is none.
    """

    def __init__(
        self,
        config: ConfigDict,
        directory: epath.Path,
        trainer: Trainer,
        run_input: RunInput,
        resume: dict[str, Any],
    ):
        if not run_input.heldout and (
            config.train.early_stopping_patience or config.checkpoint.keep_best
        ):
            raise UserError(
                "config.checkpoint.keep_best and config.train.early_stopping_patience need "
                "held-out documents, but there are none: the corpus is too small or consists of "
                "TFRecord files, or config.data.heldout_fraction is 0"
            )
        self.config, self.directory, self.trainer = config, directory, trainer
        self.num_steps = total_steps(config.train)
        keeps = config.checkpoint.keep_best
        self.best = Best(directory, keeps=keeps, state=resume.get("best", {}))
        self.results: dict[str, Any] = {}
        self._input, self._resume = run_input, resume

    def batches(self, step: int) -> Generator[tuple[Stage, dict[str, jax.Array]]]:
        shards = multihost.batch_shards(self.trainer.layout.batch)
        for stage in self.trainer.stages:
            if step >= stage.end_step:
                continue
            stream = self._input.stream(stream_spec(self.config, stage), **shards)
            is_current = self._resume.get("stage") == stage.index
            position = self._resume.get("position") if is_current else None
            first = max(step - stage.first_step, 0)
            num_steps = stage.num_steps - first
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
            "stage_first_step": self._stage.first_step,
            "position": self._stream.position(step - self._stage.first_step),
        }

    def is_evaluated(self, step: int) -> bool:
        every_steps = self.config.eval.every_steps
        # Step 0 finds out before training if a batch of evaluation does not fit into memory.
        is_due = step in (0, self.num_steps) or (every_steps and step % every_steps == 0)
        return self._input.heldout is not None and bool(is_due)

    def evaluate(self, state: TrainState, recorder: Recorder, guard: PreemptionGuard) -> None:
        step, trainer = int(state.step), self.trainer
        stage = stage_of(trainer.stages, step) if step else trainer.stages[-1]
        # At step 0, one batch is enough unless there are given weights to score.
        is_trial = not step and not self.config.init_from
        results = evaluation.evaluate(
            trainer,
            state.params,
            stage,
            store=self._input.heldout,
            tokenizer=self._input.tokenizer,
            token_counts_V=self._input.train.token_counts,
            config=self.config,
            stop=lambda: is_trial or guard.poll(),
        )
        if not results:
            return
        self.results = results
        loss = trainer.objective.held_out_loss(results)
        # The loss depends on the length of the sequences.
        self.best.update(state, -loss, group=stage.max_seq_length)
        text = evaluation.progress_text(trainer.objective.metrics, results)
        if self.best.step < step:
            text += f" (lowest loss: step {self.best.step:,})"
        recorder.log_evaluation(step, results, text)

    def is_over(self) -> bool:
        patience = self.config.train.early_stopping_patience
        return 0 < patience <= self.best.num_worse

    def ending(self, step: int) -> dict[str, Any]:
        """Returns how the run ended after its last step, for results.json."""
        ending = {"step": step, "stopped_early": step < self.num_steps}
        if self.best.step >= 0:
            ending |= {"best_step": self.best.step, "best_loss": -self.best.score}
        return ending

    def close(self) -> None:
        self.best.close()


def _checked(
    config: ConfigDict, directory: epath.PathLike, source: ConfigSource
) -> tuple[ConfigDict, Trainer, Pretrained | None, Pretrained | None, list[str]]:
    """Checks the config, the batch size, the work directory and the initial weights.

    Returns the completed config, the trainer, the teacher, the model of `config.init_from`, and
    warnings.
    """
    config, pretrained, teacher = settings.complete(config, directory, source)
    trainer = make_trainer(config, teacher=teacher)
    if trainer.objective.teacher and not teacher:
        raise UserError(
            "config.objective.terms needs a teacher: set --config.objective.teacher=DIR to a "
            "trained model, such as the work directory of python -m bert_jax.main "
            "--config=configs/tiny.py --workdir=DIR"
        )
    check_batch(config, num_data_shards(trainer.mesh), jax.process_count())
    if not workdir.has_checkpoints(directory):
        # A run that has begun did fit, and a finished one only shows its results.
        check_memory(trainer, config.train.gradient_accumulation_steps)
    warnings = [*workdir.check(directory, config), *prediction_warnings(config)]
    return config, trainer, teacher, pretrained, warnings


def _accepts_cuts(config: ConfigDict, source: ConfigSource) -> bool:
    """Returns whether the user has accepted that rows cut long sentences.

    The recorded results of the small recipes on the built-in corpus include the loss.
    """
    is_built_in = split_inputs(config.data.input) == [BUILT_IN]
    is_typed = "data.max_sentence_tokens" in source.flags
    # A run that continues has begun with them.
    return is_built_in or is_typed or source.is_stored


def _check_stage(config: ConfigDict, trainer: Trainer, step: int, resume: dict[str, Any]) -> None:
    """Refuses a change of num_steps that would move the run to a different position in its data.

    The examples of a stage are counted from its first step. If that step moved, examples would
    be repeated or skipped.
    """
    if not resume or step > total_steps(config.train):
        return
    # The stage of the last step under the current config.
    stage = next(stage for stage in trainer.stages if stage.first_step < step <= stage.end_step)
    if (resume["stage"], resume["stage_first_step"]) != (stage.index, stage.first_step):
        raise UserError(
            f"config.train.num_steps is {config.train.num_steps:,}, which would put step {step:,} "
            "of this run in a different stage or at a different position in it; keep the number "
            "and train the finished run further with --config.train.extra.steps=N, or choose a "
            "number with which the current stage stays the same and begins at the same step"
        )


def _finished(run: PretrainingRun, step: int) -> dict[str, Any] | None:
    """Reprints and returns the results of a finished run; None if it is not finished."""
    trainer, directory = run.trainer, run.directory
    path = directory / workdir.RESULTS
    if (step < run.num_steps and not run.is_over()) or not path.exists():
        return None
    try:
        results = read_results(directory, trainer.objective.metrics)
        if results["step"] != step:
            return None
    except UserError:
        # The file is damaged; evaluating again rewrites it.
        return None
    # A process may have been killed before it wrote them.
    if not (directory / workdir.REPORT).exists():
        write_pages(directory)
    further = "--config.train.extra.steps=N"
    if results.get("stopped_early"):
        further = "a larger --config.train.early_stopping_patience, or 0,"
    say(
        f"This run is finished: step {step:,} of {run.num_steps:,} is done. To train it further, "
        f"add {further} to the command."
    )
    summarize(run.config, trainer, results, directory)
    return results


def announce(
    config: ConfigDict,
    trainer: Trainer,
    run_input: RunInput,
    directory: epath.PathLike,
    step: int,
    warnings: list[str],
    reports: list[dict[str, Any]],
    source: ConfigSource,
) -> None:
    """Prints a summary of the run and its corpus, before the first compilation."""
    devices = trainer.mesh.devices
    terms = " + ".join(term.label for term in trainer.objective.terms)
    say(
        f"{terms}: {trainer.num_parameters():,} parameters ({config.dtype}) on {devices.size} x "
        f"{devices.flat[0].device_kind}"
    )
    say(run_input.describe())
    if devices.size > 1:
        print_parameters(trainer.abstract_state(), trainer.mesh, config.sharding)
    for stage in trainer.stages:
        say(
            f"steps {stage.first_step + 1:,} to {stage.end_step:,}: {stage.batch_size:,} sequences "
            f"of {stage.max_seq_length} tokens per step"
        )
    if run_input.heldout and "masked_lm_positions" in trainer.fields:
        say("evaluation masks 15 % of the tokens, in all runs alike; training has its own masks")
    if not step:
        warnings = [*warnings, *warmup_warnings(config.schedule, trainer.stages)]
    if reports and not step:
        terminal().print(corpus_report.table(reports, corpus_report.MAIN_ROWS))
        warnings = [*warnings, *corpus_report.warnings(reports)]
    for warning in settings.unasked(warnings, source):
        say(f"warning: {warning}")
    if step:
        beginning = f"continuing from step {step:,}"
    else:
        weights = f" with the weights of {config.init_from}" if config.init_from else ""
        beginning = f"starting{weights}"
    say(f"{beginning} in {directory}; its {workdir.CONFIG} has all values")


def summarize(
    config: ConfigDict, trainer: Trainer, results: dict[str, Any], path: epath.Path
) -> None:
    """Prints the results of a finished run and what to do next."""
    print()
    if "num_sequences" in results:
        title = f"Step {results['step']:,} on held-out documents"
        terminal().print(evaluation.results_table(title, trainer.objective.metrics, results))
    else:
        say(
            f"Step {results['step']:,} is not evaluated: no document was held out (the corpus is "
            "too small or consists of TFRecord files, or config.data.heldout_fraction is 0)"
        )
    if results.get("stopped_early"):
        print("ended early: the latest evaluations brought no lower held-out loss")
    if speed := results.get("train_sequences_per_second"):
        compiling = f"{results.get('compile_seconds', 0):,.0f} s of compilation"
        print(f"speed        {speed:,.0f} sequences/s, after {compiling}")
    print(f"checkpoint   {path / workdir.CHECKPOINTS / str(results['step'])}")
    best = path / workdir.BEST / str(results.get("best_step"))
    if best.exists():
        print(f"best         {best} (held-out loss {results['best_loss']:.3f})")
    print(f"report       {path / workdir.REPORT}")
    print(f"curves       {path / workdir.CURVES}, {path / 'metrics.jsonl'}, {path / 'tensorboard'}")
    say_next(settings.next_commands(config, path))
