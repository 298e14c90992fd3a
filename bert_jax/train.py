"""The pre-training loop, from a config to a trained and evaluated work directory."""

from contextlib import ExitStack, closing
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict
from rich.console import Console

from bert_jax import evaluate as evaluate_lib
from bert_jax import files, start, workdir
from bert_jax.config import check_batch
from bert_jax.errors import UserError
from bert_jax.input_setup import RunInput, open_run_input, resume_point, training_batches
from bert_jax.non_finite import non_finite
from bert_jax.parallel import multihost
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.parallel.parameter_table import print_parameters
from bert_jax.progress import Progress, say
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.curves import write_curves
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.preemption import PreemptionGuard
from bert_jax.training.profiler import StepProfiler
from bert_jax.training.recorder import NonFiniteError, Recorder
from bert_jax.training.stages import Stage
from bert_jax.training.trainer import Trainer


def train(config: ConfigDict, directory: epath.PathLike) -> dict[str, Any] | None:
    """Trains to `config.train.num_steps`, or goes on from where a run was stopped.

    Args:
      config: A validated config, as the files in configs/ make them.
      directory: The work directory. It gets config.json, tokenizer/, data/ (unless
        config.data.store is elsewhere), checkpoints/, metrics.jsonl, tensorboard/,
        and at the end results.json and curves.png.

    Returns:
      The held-out results of the end (empty where nothing is held out); None when
      the run was asked to stop before.

    Raises:
      UserError: whatever the user can mend, in one sentence.
    """
    with ExitStack() as stack:

        def checked() -> tuple[Trainer, list[str]]:
            trainer = Trainer.from_config(config)
            check_batch(config, num_data_shards(trainer.mesh), jax.process_count())
            warnings = workdir.check(directory, config)
            stack.enter_context(workdir.lock(directory))
            start.check(config, directory)
            return trainer, warnings

        trainer, warnings = multihost.run_on_all(checked)
        return _train(config, directory, trainer, warnings)


def _train(
    config: ConfigDict, directory: epath.PathLike, trainer: Trainer, warnings: list[str]
) -> dict[str, Any] | None:
    corpus = open_run_input(config, directory)
    with PreemptionGuard() as guard, closing(open_checkpoints(config, directory)) as checkpointer:
        state, resume = start.start(config, directory, trainer, checkpointer, corpus.tokenizer)
        step, num_steps = int(state.step), config.train.num_steps
        check_resume(config, trainer, step, resume)
        # Only now: a start that failed on its input leaves the directory to the next.
        multihost.run_on_process_zero(lambda: workdir.claim(directory, config))
        if finished := multihost.run_on_process_zero(
            lambda: finished_results(directory, step, num_steps)
        ):
            return finished

        announce(config, trainer, corpus, directory, step, warnings)
        first = multihost.is_first()
        # Of a later stage a step takes longer.
        cost = trainer.flops_until
        progress = Progress("train", num_steps, "steps", done=step, enabled=first, cost=cost)
        with (
            progress,
            closing(MetricsWriter(directory, resumed_step=step, enabled=first)) as writer,
            closing(training_batches(config, trainer, corpus, step, resume)) as batches,
        ):
            recorder = Recorder(trainer, writer, progress, resume.get("meter", {}))
            profiler = StepProfiler(
                epath.Path(directory) / workdir.PROFILE,
                **config.profile,
                done=step,
                say=progress.message,
                paused=recorder.paused,
                enabled=first,
            )
            for stage, stream, batch in batches:
                try:
                    # Dispatched before the metrics of the step before are read.
                    state, metrics = profiler.run(step + 1, trainer.train_step, state, batch)
                    step += 1
                    last = step == num_steps
                    recorder.dispatched(step, stage, metrics)
                    if step % config.log.every_steps == 0 or last:
                        recorder.log(step)
                    if is_evaluated(config, corpus, step) and not (guard.poll() or last):
                        with recorder.paused():
                            results = evaluate(config, trainer, corpus, state.params, stage, guard)
                        log_evaluation(recorder, step, results)
                    stop = guard.poll()
                    if step % config.checkpoint.every_steps == 0 or last or stop:
                        with recorder.paused():
                            resume = resume_point(stage, stream, step)
                            resume["meter"] = recorder.state()
                            # No checkpoint may be newer than the lines of its steps.
                            writer.flush()
                            checkpointer.save(step, state, resume)
                except NonFiniteError as error:
                    batch = stream.describe_batch(error.step - 1 - stage.first_step)
                    raise non_finite(error, directory, batch, checkpointer) from error
                if stop:
                    break
            profiler.close()
            checkpointer.wait()
            results = {}
            if corpus.heldout and not guard.requested:
                results = evaluate(config, trainer, corpus, state.params, trainer.stages[-1], guard)
                log_evaluation(recorder, step, results)
            if guard.requested:
                progress.message(
                    f"Stopped by {guard.signal_name}: the checkpoint of step {step:,} is saved; "
                    "the same command goes on from it."
                )
                return None

    results |= {"step": step, "train_sequences_per_second": recorder.run_sequences_per_second()}
    if first:
        files.write_json(epath.Path(directory) / workdir.RESULTS, results)
        write_curves(directory, epath.Path(directory) / workdir.CURVES)
        summarize(results, directory)
    return results


def open_checkpoints(config: ConfigDict, directory: epath.PathLike) -> Checkpointer:
    """The run's checkpoints, kept as the config says."""
    return Checkpointer(
        epath.Path(directory) / workdir.CHECKPOINTS,
        keep=config.checkpoint.keep,
        keep_every_steps=config.checkpoint.keep_every_steps,
    )


def check_resume(config: ConfigDict, trainer: Trainer, step: int, resume: dict[str, Any]) -> None:
    """Refuses a change of num_steps that would move the run to another place in its data.

    A stage's examples are counted from its first step: were that moved, examples would
    come twice, or never.
    """
    if not resume or step > config.train.num_steps:
        return
    # The stage of the last step taken, as today's config divides the steps.
    stage = next(stage for stage in trainer.stages if stage.first_step < step <= stage.end_step)
    then = (resume["stage"], resume["stage_first_step"])
    if then != (stage.index, stage.first_step):
        raise UserError(
            f"config.train.num_steps is {config.train.num_steps:,}, by which step {step:,} of this "
            "run would belong to another stage or another place in it; the number can be changed "
            "only while the run stays in the stage it is in, and that stage begins where it began"
        )


def is_evaluated(config: ConfigDict, corpus: RunInput, step: int) -> bool:
    """Whether the held-out documents are scored after this step, before the end."""
    every_steps = config.eval.every_steps
    return bool(every_steps) and step % every_steps == 0 and corpus.heldout is not None


def evaluate(
    config: ConfigDict,
    trainer: Trainer,
    corpus: RunInput,
    params: Any,
    stage: Stage,
    guard: PreemptionGuard,
) -> dict[str, float]:
    """Scores on the held-out documents, at the stage's length; empty when asked to stop."""
    return evaluate_lib.evaluate(
        trainer,
        params,
        stage,
        store=corpus.heldout,
        tokenizer=corpus.tokenizer,
        token_counts_V=corpus.train.token_counts,
        config=config,
        stop=guard.poll,
    )


def log_evaluation(recorder: Recorder, step: int, results: dict[str, float]) -> None:
    """Writes an evaluation down and tells of it; nothing if it was stopped."""
    if results:
        recorder.log_evaluation(
            step,
            results,
            f"held-out MLM loss {results['mlm_loss']:.3f} "
            f"(unigram {results['unigram_mlm_loss']:.3f}), "
            f"MLM accuracy {results['mlm_accuracy']:.1%}, "
            f"NSP accuracy {results['nsp_accuracy']:.1%}",
        )


def finished_results(directory: epath.PathLike, step: int, num_steps: int) -> dict[str, Any] | None:
    """The results of a run that is at its end and evaluated, told once more."""
    path = epath.Path(directory) / workdir.RESULTS
    if step < num_steps or not path.exists():
        return None
    try:
        results = files.read_json(path)
        if results["step"] != step:
            return None
    except (UserError, KeyError, TypeError):
        # Damaged: evaluating once more writes it anew.
        return None
    print(f"This run is finished: step {step:,} of {num_steps:,} is done.")
    summarize(results, directory)
    return results


def announce(
    config: ConfigDict,
    trainer: Trainer,
    corpus: RunInput,
    directory: epath.PathLike,
    step: int,
    warnings: list[str],
) -> None:
    """Says what is about to run, before the long silence of the first compilation."""
    devices = trainer.mesh.devices
    say(
        f"BERT of {trainer.num_parameters():,} parameters ({config.dtype}) on {devices.size} x "
        f"{devices.flat[0].device_kind}; {corpus.describe()}"
    )
    print_parameters(trainer.abstract_state(), trainer.mesh, config.sharding)
    for stage in trainer.stages:
        say(
            f"steps {stage.first_step + 1:,} to {stage.end_step:,}: {stage.batch_size:,} sequences "
            f"of {stage.max_seq_length} tokens a step"
        )
    warmup = config.schedule.warmup_steps
    if warmup >= config.train.num_steps and not trainer.stages[0].peak_learning_rate:
        warnings = [
            *warnings,
            f"config.schedule.warmup_steps is {warmup:g}: with {config.train.num_steps:,} steps "
            "the learning rate never reaches its peak",
        ]
    for warning in warnings:
        say(f"warning: {warning}")
    beginning = (
        f"starting with the weights of {config.init_from}" if config.init_from else "starting"
    )
    say(f"{f'going on from step {step:,}' if step else beginning} in {directory}")


def summarize(results: dict[str, Any], directory: epath.PathLike) -> None:
    """What a person wants to know at the end, and what to do next."""
    path = epath.Path(directory)
    print()
    if "mlm_loss" in results:
        title = f"Step {results['step']:,} on held-out documents"
        Console().print(evaluate_lib.results_table(title, results))
    else:
        say(
            f"Step {results['step']:,} is not evaluated: no document was held out (the corpus is "
            "too small, or TFRecord files, or config.data.heldout_fraction is 0)"
        )
    if speed := results.get("train_sequences_per_second"):
        print(f"trained at {speed:,.0f} sequences/s")
    print(f"checkpoint   {path / workdir.CHECKPOINTS / str(results['step'])}")
    print(f"curves       {path / workdir.CURVES}, {path / 'metrics.jsonl'}, {path / 'tensorboard'}")
    print("what next    ask it for a word:")
    print(f"             python -m bert_jax.predict --model={path} fill-mask 'It is [MASK].'")
    print("             score it on text of your own:")
    print(f"             python -m bert_jax.evaluate --workdir={path} --data='my_text/*.txt'")
    print("             train on text of your own:")
    print("             python -m bert_jax.main --config=configs/mini.py --workdir=DIR \\")
    print("                 --config.data.input='my_text/*.txt'")
