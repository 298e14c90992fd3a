"""A run of pre-training: `train` is the run from top to bottom.

A run of fine-tuning has the same steps (`bert_jax.finetuning.run.finetune`).
"""

from contextlib import ExitStack, closing
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.progress import say
from bert_jax.config.command_line import ConfigSource
from bert_jax.interop.families import load_family
from bert_jax.parallel import multihost
from bert_jax.pretraining import checks, settings, weights
from bert_jax.pretraining.build import make_objective, make_trainer
from bert_jax.pretraining.input import open_run_input
from bert_jax.pretraining.run import PretrainingRun
from bert_jax.pretraining.summary import announce, corpus_reports, summarize
from bert_jax.reports.page import write_pages
from bert_jax.training import workdir
from bert_jax.training.checkpoint import open_checkpoints
from bert_jax.training.loop import PreemptionGuard, train_loop
from bert_jax.training.metrics import BEFORE, evaluation_at
from bert_jax.training.start import lock, print_differences
from bert_jax.training.tracker import Tracker


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
    """
    path, is_first = epath.Path(directory), multihost.is_first()
    source = source or ConfigSource("the given config", config)
    with ExitStack() as stack:
        # The config of a finished run may come from others and name any file or bucket. With
        # --workdir alone, only the work directory is opened.
        if source.is_stored and not source.flags:
            newest = workdir.newest_checkpoint(path)
            if results := multihost.run_on_process_zero(_finished, config, path, newest):
                return results

        # Config: add what the initial weights, the teacher or a given store determine, check
        # everything that can be checked before any work, and lock the directory.
        with multihost.agreed():
            config, pretrained, teacher = settings.complete(config, directory, source)
            trainer = make_trainer(config, teacher=teacher)
            warnings = checks.check(config, directory, trainer, pretrained, teacher)
            stack.enter_context(lock(directory))
            weights.copy_vocabulary(config, directory, pretrained or teacher)
        print_differences(config, source)

        # Input: it may take hours to prepare.
        run_input = open_run_input(config, directory)

        # State: from a checkpoint, from weights or from the seed.
        guard = stack.enter_context(PreemptionGuard())
        checkpointer = stack.enter_context(closing(open_checkpoints(directory, config)))
        state, resume = weights.first_state(
            config, directory, trainer, checkpointer, pretrained, teacher, run_input.tokenizer
        )
        step = int(state.step)
        if results := multihost.run_on_process_zero(_finished, config, path, step):
            return results
        # The config is written only now, because opening the input may fail.
        multihost.run_on_process_zero(weights.claim, config, directory, pretrained)
        reports = corpus_reports(run_input, config, trainer.stages) if is_first else []
        announce(config, trainer, run_input, directory, step, warnings, reports)

        # Loop.
        guesses_at_random = weights.guesses_at_random(config, pretrained)
        run = PretrainingRun(config, path, trainer, run_input, resume, guesses_at_random)
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


def _finished(config: ConfigDict, directory: epath.Path, step: int | None) -> dict[str, Any] | None:
    """Reprints and returns the results of a finished run; None if it is not finished."""
    # Parts from outside are refused, as in a run that is not finished.
    load_family(config.family)
    metrics = make_objective(config).metrics
    if not (directory / workdir.RESULTS).exists():
        return None
    results = files.read_json(directory / workdir.RESULTS)
    num_steps = config.train.num_steps
    if results.get("step") != step or step < num_steps:
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
