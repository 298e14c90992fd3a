"""Pre-trains a model: from a config to a trained and evaluated work directory."""

import functools
import shlex
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from bert_jax import evaluation, files, initialize, report, run_config, workdir
from bert_jax.command_line import ConfigSource
from bert_jax.config import check_batch, prediction_warnings, teacher_layers, total_steps
from bert_jax.data import corpus_report
from bert_jax.divergence import diverged
from bert_jax.errors import UserError
from bert_jax.input_setup import RunInput, TrainingBatches, open_run_input
from bert_jax.interop.pretrained import Pretrained
from bert_jax.objectives.terms.masked_lm import MaskedLM
from bert_jax.parallel import multihost
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.parallel.parameter_table import print_parameters
from bert_jax.pretraining import make_trainer
from bert_jax.progress import say, terminal
from bert_jax.training.best import Evaluations, open_best, remove_later, restore_best, save_best
from bert_jax.training.curves import pretraining_panels, write_curves
from bert_jax.training.loop import train_loop
from bert_jax.training.metrics import METRICS_FILE, read_metrics
from bert_jax.training.preemption import PreemptionGuard
from bert_jax.training.recorder import NonFiniteError, recording
from bert_jax.training.schedule import warmup_warnings
from bert_jax.training.state import TrainState
from bert_jax.training.trainer import Trainer

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
    source = source or ConfigSource("the given config", config)
    with ExitStack() as stack:
        # Check everything that can be checked before any work is done.
        config, trainer, teacher, pretrained, warnings = multihost.run_on_all(
            lambda: _checked(config, directory, source, stack)
        )
        run_config.describe(config, source)
        # The directory stays locked until the results are written.
        return _train(config, directory, source, trainer, teacher, pretrained, warnings)


def _train(
    config: ConfigDict,
    directory: epath.PathLike,
    source: ConfigSource,
    trainer: Trainer,
    teacher: Pretrained | None,
    pretrained: Pretrained | None,
    warnings: list[str],
) -> dict[str, Any] | None:
    path = epath.Path(directory)
    is_first = multihost.is_first()
    with ExitStack() as stack:
        run_input = open_run_input(config, directory)
        patience, keeps_best = config.train.early_stopping_patience, config.checkpoint.keep_best
        if (patience or keeps_best) and not run_input.heldout:
            raise UserError(
                "config.checkpoint.keep_best and config.train.early_stopping_patience need "
                "held-out documents, but there are none: the corpus is too small or consists of "
                "TFRecord files, or config.data.heldout_fraction is 0"
            )
        if teacher:
            initialize.check_tokenizer(teacher, run_input.tokenizer)
        guard = stack.enter_context(PreemptionGuard())
        checkpointer = stack.enter_context(closing(initialize.open_checkpoints(config, directory)))

        # Start or continue.
        if config.resume_from and not workdir.has_checkpoints(directory):
            workdir.check_same_corpus(config.resume_from, directory)
        weights = None
        if pretrained:
            tokenizer = run_input.tokenizer
            weights = functools.partial(initialize.take_weights, config, pretrained, tokenizer)
        elif teacher and teacher_layers(config):
            weights = functools.partial(initialize.take_layers, config, teacher, trainer.model)
        state, resume = initialize.initialize(
            trainer, checkpointer, other_run=config.resume_from, weights=weights
        )
        step, num_steps = int(state.step), total_steps(config.train)
        _check_stage(config, trainer, step, resume)
        # The directory is claimed only now, because opening the input may fail.
        differences = None if source.is_stored else run_config.differences(config, source)

        def claim() -> list[dict[str, Any]]:
            workdir.claim(directory, config, differences)
            initialize.record_length(config, directory, pretrained)
            remove_later(directory, step)
            # A run that begins again evaluates step 0 again.
            return [line for line in read_metrics(directory) if line["step"] <= step > 0]

        lines = multihost.run_on_process_zero(claim)
        evaluations = Evaluations(trainer.objective, trainer.stages, patience, lines)
        if patience and step >= config.eval.every_steps > 0 and not evaluations.results:
            warnings.append(
                f"{path / METRICS_FILE} has no evaluation of the steps up to {step:,}: early "
                "stopping begins anew"
            )
        end_step = step if evaluations.has_stalled() else num_steps
        finished = multihost.run_on_process_zero(lambda: _finished(trainer, path, step, end_step))
        if finished:
            return finished
        reports = run_input.reports(config, trainer.stages) if is_first else []
        announce(config, trainer, run_input, directory, step, warnings, reports)

        recorder, profiler = stack.enter_context(
            recording(
                "train",
                config,
                trainer,
                directory,
                num_steps,
                step,
                resume,
                # Steps of later stages take longer, so progress is measured in FLOPs.
                cost=trainer.flops_until,
                advice=_SLOW,
            )
        )
        batches = TrainingBatches(config, trainer, run_input, step, resume)
        stack.enter_context(closing(batches))
        best = stack.enter_context(closing(open_best(directory))) if keeps_best else None

        def is_evaluated(step: int) -> bool:
            # The last step is evaluated after its checkpoint is saved.
            every_steps = config.eval.every_steps
            is_due = every_steps and step % every_steps == 0 and step < num_steps
            return bool(is_due) and run_input.heldout is not None

        def evaluate(
            step: int, state: TrainState, stop: Callable[[], bool] = guard.poll
        ) -> dict[str, float]:
            results = evaluation.evaluate(
                trainer,
                state.params,
                evaluations.stage(step),
                store=run_input.heldout,
                tokenizer=run_input.tokenizer,
                token_counts_V=run_input.train.token_counts,
                config=config,
                stop=stop,
            )
            if results:
                evaluations.results[step] = results
                text = evaluation.progress_text(trainer.objective.metrics, results)
                best_step, _ = evaluations.best()
                if best_step < step:
                    text += f" (lowest loss: step {best_step:,})"
                elif best:
                    save_best(best, state)
                recorder.log_evaluation(step, results, text)
            return results

        for kept in best.steps()[-1:] if best else ():
            if kept not in evaluations.results:
                # metrics.jsonl was lost, but later evaluations are compared with this one.
                evaluate(kept, restore_best(directory, trainer.abstract_state().params, kept))
        if run_input.heldout and not step:
            # Given weights are scored before training. In any case, one batch is evaluated now, to
            # find out before training if the batch is too large for the memory.
            evaluate(0, state, guard.poll if pretrained else lambda: True)
        elif is_evaluated(step) and step not in evaluations.results:
            # The run was stopped between this step and its evaluation.
            evaluate(step, state)
        # If the run is stopped again, the next start evaluates the step.
        is_over = guard.poll() or evaluations.has_stalled()
        try:
            state = train_loop(
                config,
                trainer,
                state,
                () if is_over else batches,
                num_steps=num_steps,
                recorder=recorder,
                profiler=profiler,
                checkpointer=checkpointer,
                guard=guard,
                is_evaluated=is_evaluated,
                evaluate=evaluate,
                resume_point=batches.resume_point,
                is_over=evaluations.has_stalled,
            )
        except NonFiniteError as error:
            batch = batches.describe(error.step)
            raise diverged(error, directory, batch, checkpointer) from error

        step, results = int(state.step), {}
        if run_input.heldout and not guard.requested:
            results = evaluations.results.get(step) or evaluate(step, state)
        if guard.requested:
            recorder.message(
                f"Stopped by {guard.signal_name}: the checkpoint of step {step:,} is "
                "saved; run the same command to continue."
            )
            return None

    ending = {"step": step, "stopped_early": step < num_steps}
    if lowest := evaluations.best():
        ending["best_step"], ending["best_loss"] = lowest
    results = results | ending | recorder.times() | {"corpus": reports}
    if is_first:
        files.write_json(path / workdir.RESULTS, results)
        _write_pages(trainer, path)
        summarize(trainer, results, path)
    return results


def _checked(
    config: ConfigDict, directory: epath.PathLike, source: ConfigSource, stack: ExitStack
) -> tuple[ConfigDict, Trainer, Pretrained | None, Pretrained | None, list[str]]:
    """Checks the batch size, the work directory and the initial weights; locks the directory.

    Returns the completed config, the trainer, the teacher, the model of `config.init_from`, and
    warnings.
    """
    config, pretrained, teacher = run_config.complete(config, directory, source)
    trainer = make_trainer(config, teacher=teacher)
    if trainer.objective.teacher and not teacher:
        raise UserError(
            "config.objective.terms needs a teacher: set --config.objective.teacher=DIR to a "
            "trained model, such as the work directory of python -m bert_jax.main "
            "--config=configs/tiny.py --workdir=DIR"
        )
    check_batch(config, num_data_shards(trainer.mesh), jax.process_count())
    warnings = [*workdir.check(directory, config), *prediction_warnings(config)]
    stack.enter_context(workdir.lock(directory))
    initialize.check(config, directory, pretrained, teacher)
    return config, trainer, teacher, pretrained, warnings


def _check_stage(config: ConfigDict, trainer: Trainer, step: int, resume: dict[str, Any]) -> None:
    """Refuses a change of num_steps that would move the run to another place in its data.

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
            "of this run in another stage or at another place in its stage; keep the number and "
            "train the finished run further with --config.train.extra.steps=N, or choose a number "
            "with which the current stage stays the same and begins at the same step"
        )


def _write_pages(trainer: Trainer, directory: epath.Path) -> None:
    """Writes curves.png and report.html, from the files of the run."""
    panels = pretraining_panels(trainer.objective.terms)
    write_curves(directory, directory / workdir.CURVES, panels)
    report.write_page(directory)


def _finished(
    trainer: Trainer, directory: epath.Path, step: int, end_step: int
) -> dict[str, Any] | None:
    """Reprints and returns the results of a finished run; None if it is not finished."""
    path = directory / workdir.RESULTS
    if step < end_step or not path.exists():
        return None
    try:
        results = files.read_json(path)
        if results["step"] != step:
            return None
    except (UserError, KeyError):
        # The file is damaged; evaluating again rewrites it.
        return None
    # A process may have been killed before it wrote them.
    if not (directory / workdir.REPORT).exists():
        _write_pages(trainer, directory)
    further = "--config.train.extra.steps=N"
    if results.get("stopped_early"):
        further = "a larger --config.train.early_stopping_patience, or 0,"
    print(
        f"This run is finished: step {step:,} of {end_step:,} is done. To train it further, add "
        f"{further} to the command."
    )
    summarize(trainer, results, directory)
    return results


def announce(
    config: ConfigDict,
    trainer: Trainer,
    run_input: RunInput,
    directory: epath.PathLike,
    step: int,
    warnings: list[str],
    reports: list[dict[str, Any]],
) -> None:
    """Prints a summary of the run and its corpus, before the first compilation."""
    devices = trainer.mesh.devices
    terms = " + ".join(term.label for term in trainer.objective.terms)
    say(
        f"{terms}: {trainer.num_parameters():,} parameters ({config.dtype}) on {devices.size} x "
        f"{devices.flat[0].device_kind}; {run_input.describe()}"
    )
    if devices.size > 1:
        print_parameters(trainer.abstract_state(), trainer.mesh, config.sharding)
    for stage in trainer.stages:
        say(
            f"steps {stage.first_step + 1:,} to {stage.end_step:,}: {stage.batch_size:,} sequences "
            f"of {stage.max_seq_length} tokens per step"
        )
    warnings = [*warnings, *warmup_warnings(config.schedule, trainer.stages)]
    if reports and not step:
        terminal().print(corpus_report.table(reports))
        warnings = [*warnings, *corpus_report.warnings(reports)]
    for warning in warnings:
        say(f"warning: {warning}")
    if step:
        say(f"continuing from step {step:,} in {directory}")
    elif config.init_from:
        say(f"starting with the weights of {config.init_from} in {directory}")
    else:
        say(f"starting in {directory}")


def summarize(trainer: Trainer, results: dict[str, Any], path: epath.Path) -> None:
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
        print(f"trained at {speed:,.0f} sequences/s")
    print(f"checkpoint   {path / workdir.CHECKPOINTS / str(results['step'])}")
    best = path / workdir.BEST / str(results.get("best_step"))
    if best.exists():
        print(f"best         {best} (held-out loss {results['best_loss']:.3f})")
    print(f"report       {path / workdir.REPORT}")
    print(f"curves       {path / workdir.CURVES}, {path / 'metrics.jsonl'}, {path / 'tensorboard'}")
    quoted = shlex.quote(str(path))
    print("what next    evaluate it on your own text:")
    print(f"             python -m bert_jax.evaluate --workdir={quoted} --data='my_text/*.txt'")
    print("             train on your own text:")
    print("             python -m bert_jax.main --config=configs/mini_laptop.py --workdir=DIR \\")
    print("                 --config.data.input='my_text/*.txt'")
    if any(isinstance(term, MaskedLM) for term in trainer.objective.terms):
        print("             fill in a masked word:")
        print(f"             python -m bert_jax.predict --model={quoted} fill-mask 'It is [MASK].'")
