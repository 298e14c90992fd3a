"""The pre-training loop, from a config to a trained and evaluated work directory."""

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict
from rich.console import Console

from bert_jax import evaluate as evaluate_lib
from bert_jax import prepare, tokenizers, validation, workdir
from bert_jax.data.pipeline import PipelineSpec, PretrainingStream
from bert_jax.data.store import TokenStore, read_metadata
from bert_jax.errors import UserError
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.progress import Progress, say
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.curves import write_curves
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.preemption import PreemptionGuard
from bert_jax.training.recorder import NonFiniteError, Recorder
from bert_jax.training.stages import Stage
from bert_jax.training.trainer import Trainer


def train(config: ConfigDict, directory: epath.PathLike) -> dict[str, Any] | None:
    """Trains to `config.train.num_steps`, or goes on from where a run was stopped.

    Args:
      config: As the files in configs/ make them.
      directory: The work directory. It gets config.json, tokenizer/, data/ (unless
        config.data.store is elsewhere), checkpoints/, metrics.jsonl, tensorboard/,
        and at the end results.json and curves.png.

    Returns:
      The held-out results of the end (empty where nothing is held out); None when
      the run was asked to stop before.

    Raises:
      UserError: whatever the user can mend, in one sentence.
    """
    validation.validate(config)
    trainer = Trainer.from_config(config)
    validation.check_batch(config, num_data_shards(trainer.mesh), jax.process_count())
    warnings = workdir.check(directory, config)
    if jax.process_count() > 1:
        raise UserError("training on several hosts is not supported yet; run a single process")
    with workdir.lock(directory):
        return _train(config, directory, trainer, warnings)


def _train(
    config: ConfigDict, directory: epath.PathLike, trainer: Trainer, warnings: list[str]
) -> dict[str, Any] | None:
    corpus = open_corpus(config, directory)
    # Only now: a start that failed on its input leaves the directory to the next.
    workdir.claim(directory, config)
    with PreemptionGuard() as guard, closing(open_checkpoints(config, directory)) as checkpointer:
        # A run starts from its own newest checkpoint, or from scratch.
        state, resume = checkpointer.restore_newest(trainer.abstract_state()) or (None, {})
        state = trainer.init_state() if state is None else state
        step, num_steps = int(state.step), config.train.num_steps
        check_resume(config, trainer, step, resume)
        if finished := finished_results(directory, step, num_steps):
            return finished

        announce(config, trainer, corpus, directory, step, warnings)
        progress = Progress("train", num_steps, "steps", done=step)
        with (
            progress,
            closing(MetricsWriter(directory, resumed_step=step)) as writer,
            closing(training_batches(config, trainer, corpus, step, resume)) as batches,
        ):
            recorder = Recorder(trainer, writer, progress, resume.get("meter", {}))
            for stage, stream, batch in batches:
                # Dispatched before the metrics of the step before are read.
                state, metrics = trainer.train_step(state, batch)
                step += 1
                last = step == num_steps
                try:
                    recorder.dispatched(step, stage, metrics)
                    if step % config.log.every_steps == 0 or last:
                        recorder.log(step)
                    if is_evaluated(config, corpus, step) and not (last or guard.requested):
                        with recorder.paused():
                            results = evaluate(config, trainer, corpus, state.params, stage, guard)
                        recorder.log_evaluation(step, results)
                    stop = guard.requested
                    if step % config.checkpoint.every_steps == 0 or last or stop:
                        with recorder.paused():
                            resume = resume_point(stage, stream, step, recorder)
                            checkpointer.save(step, state, resume)
                except NonFiniteError as error:
                    raise non_finite(error, directory, stage, stream, checkpointer) from error
                if stop:
                    break
            checkpointer.wait()
            results = {}
            if corpus.heldout and not guard.requested:
                results = evaluate(config, trainer, corpus, state.params, trainer.stages[-1], guard)
                recorder.log_evaluation(step, results)
            if guard.requested:
                progress.message(
                    f"Stopped by {guard.signal_name}: the checkpoint of step {step:,} is saved; "
                    "the same command goes on from it."
                )
                return None

    results |= {"step": step, "train_sequences_per_second": recorder.run_sequences_per_second()}
    workdir.write_json(epath.Path(directory) / workdir.RESULTS, results)
    write_curves(directory, epath.Path(directory) / workdir.CURVES)
    summarize(results, directory)
    return results


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What a run reads; `heldout` is None where no document was held out."""

    train: TokenStore
    heldout: TokenStore | None
    tokenizer: tokenizers.Tokenizer


def open_corpus(config: ConfigDict, directory: epath.PathLike) -> Corpus:
    """Opens the run's token store; prepares it first where it is missing.

    A store that `config.data.store` names must be there: it is taken as it is, knows its
    own source, and only says what the config must agree with. The one inside the work
    directory is prepared, and must be of this very config.
    """
    path = workdir.store_directory(directory, config)
    if config.data.store:
        metadata = read_metadata(path)
        check_options(config, metadata, path)
    else:
        # Returns at once where the store is there and of this config.
        metadata = prepare.prepare(config.data, config.model.vocab_size, path)
    tokenizer = tokenizers.load(path / "tokenizer")
    validation.check_vocabulary(config, tokenizer.vocab_size, str(path))
    train_split = TokenStore(path / "train")
    workdir.claim_corpus(directory, metadata, tokenizer, train_split.token_counts)
    heldout = path / "heldout"
    return Corpus(train_split, TokenStore(heldout) if heldout.exists() else None, tokenizer)


def check_options(config: ConfigDict, metadata: dict[str, Any], path: epath.Path) -> None:
    """Refuses a config that says of a given store what is not so."""
    for key in ("tokenizer", "lowercase"):
        there, here = metadata["options"][key], config.data[key]
        if there != here:
            raise UserError(
                f"config.data.{key} is {here!r} but the token store {path} was prepared with "
                f"{there!r}; set --config.data.{key}={there}"
            )


def open_checkpoints(config: ConfigDict, directory: epath.PathLike) -> Checkpointer:
    """The run's checkpoints, kept as the config says."""
    return Checkpointer(
        epath.Path(directory) / workdir.CHECKPOINTS,
        keep=config.checkpoint.keep,
        keep_every_steps=config.checkpoint.keep_every_steps,
    )


def training_batches(
    config: ConfigDict, trainer: Trainer, corpus: Corpus, step: int, resume: dict[str, Any]
) -> Iterator[tuple[Stage, PretrainingStream, dict[str, jax.Array]]]:
    """Every step's batch, on the devices, from `step` to the end of the last stage.

    Args:
      step: Steps already taken.
      resume: What `resume_point` gave when they had been taken; may be empty.
    """
    for stage in trainer.stages:
        if step >= stage.end_step:
            continue
        stream = PretrainingStream(
            corpus.train,
            corpus.tokenizer,
            pipeline_spec(config, stage),
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        position = resume.get("position") if resume.get("stage") == stage.index else None
        first = max(step - stage.first_step, 0)
        with closing(stream.batches(first, stage.num_steps - first, position)) as rows:
            for batch in trainer.put(rows):
                yield stage, stream, batch


def pipeline_spec(config: ConfigDict, stage: Stage) -> PipelineSpec:
    """What determines a stage's batches."""
    return PipelineSpec(
        max_seq_length=stage.max_seq_length,
        max_predictions_per_seq=stage.max_predictions_per_seq,
        batch_size=stage.batch_size,
        seed=config.seed,
        stage=stage.index,
        masked_lm_prob=config.data.masked_lm_prob,
        short_seq_prob=config.data.short_seq_prob,
        whole_word_masking=config.data.whole_word_masking,
        shuffle_sentences=config.data.shuffle_sentences,
        num_threads=config.data.num_threads,
        prefetch_batches=config.data.prefetch_batches,
    )


def resume_point(
    stage: Stage, stream: PretrainingStream, step: int, recorder: Recorder
) -> dict[str, Any]:
    """What a checkpoint holds beside the state: where in the data the next step begins."""
    return {
        "stage": stage.index,
        "stage_first_step": stage.first_step,
        "position": stream.position(step - stage.first_step),
        "meter": recorder.state(),
    }


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


def is_evaluated(config: ConfigDict, corpus: Corpus, step: int) -> bool:
    """Whether the held-out documents are scored after this step, before the end."""
    every_steps = config.eval.every_steps
    return bool(every_steps) and step % every_steps == 0 and corpus.heldout is not None


def evaluate(
    config: ConfigDict,
    trainer: Trainer,
    corpus: Corpus,
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
        stop=lambda: guard.requested,
    )


def non_finite(
    error: NonFiniteError,
    directory: epath.PathLike,
    stage: Stage,
    stream: PretrainingStream,
    checkpointer: Checkpointer,
) -> UserError:
    """Writes down what is known of a step that was not finite; returns what to say."""
    checkpointer.wait()
    steps = checkpointer.steps()
    report = {
        "step": error.step,
        # NaN is no JSON.
        "metrics": {name: str(value) for name, value in error.metrics.items()},
        "last_good_checkpoint": steps[-1] if steps else None,
        "batch": stream.describe_batch(error.step - 1 - stage.first_step),
    }
    path = epath.Path(directory) / f"non_finite_step_{error.step}.json"
    workdir.write_json(path, report)
    last = f"the last checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint"
    return UserError(
        f"the loss or the gradient of step {error.step} is not finite (loss "
        f"{error.metrics['loss']}, gradient norm {error.metrics['grad_norm']}, learning rate "
        f"{error.metrics['learning_rate']:.3g}); {last}; the batch is described in {path}; what "
        "usually helps is to start in another --workdir with a lower "
        "config.schedule.peak_learning_rate or a longer warm-up"
    )


def finished_results(directory: epath.PathLike, step: int, num_steps: int) -> dict[str, Any] | None:
    """The results of a run that is at its end and evaluated, told once more."""
    path = epath.Path(directory) / workdir.RESULTS
    if step < num_steps or not path.exists():
        return None
    try:
        results = workdir.read_json(path)
        if results["step"] != step:
            return None
    except (ValueError, KeyError, TypeError):
        # Damaged: evaluating once more writes it anew.
        return None
    print(f"This run is finished: step {step:,} of {num_steps:,} is done.")
    summarize(results, directory)
    return results


def announce(
    config: ConfigDict,
    trainer: Trainer,
    corpus: Corpus,
    directory: epath.PathLike,
    step: int,
    warnings: list[str],
) -> None:
    """Says what is about to run, before the long silence of the first compilation."""
    devices = trainer.mesh.devices
    heldout = corpus.heldout.num_documents if corpus.heldout else 0
    say(
        f"BERT of {trainer.num_parameters():,} parameters ({config.dtype}) on {devices.size} x "
        f"{devices.flat[0].device_kind}; {corpus.train.num_tokens:,} tokens of "
        f"{corpus.train.num_documents:,} documents to train on, {heldout:,} documents held out"
    )
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
    say(f"{'going on from step ' + format(step, ',') if step else 'starting'} in {directory}")


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
            "too small, or config.data.heldout_fraction is 0)"
        )
    if speed := results.get("train_sequences_per_second"):
        print(f"trained at {speed:,.0f} sequences/s")
    print(f"checkpoint   {path / workdir.CHECKPOINTS / str(results['step'])}")
    print(f"curves       {path / workdir.CURVES}, {path / 'metrics.jsonl'}, {path / 'tensorboard'}")
    print("what next    score it on text of your own:")
    print(f"             python -m bert_jax.evaluate --workdir={path} --data='my_text/*.txt'")
    print("             train on text of your own:")
    print("             python -m bert_jax.main --config=configs/mini.py --workdir=DIR \\")
    print("                 --config.data.input='my_text/*.txt'")
