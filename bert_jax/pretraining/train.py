"""A run of pre-training: `train` is the run from top to bottom.

A run of fine-tuning has the same steps (`bert_jax.finetuning.run.finetune`).
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.progress import say
from bert_jax.config.command_line import ConfigSource
from bert_jax.interop.pretrained import Pretrained
from bert_jax.parallel import multihost
from bert_jax.pretraining import checks, weights
from bert_jax.pretraining.batches import RunInput
from bert_jax.pretraining.build import make_objective, make_trainer
from bert_jax.pretraining.run import PretrainingRun
from bert_jax.pretraining.summary import announce, corpus_reports, summarize
from bert_jax.training import workdir
from bert_jax.training.checkpoint import open_checkpoints
from bert_jax.training.loop import PreemptionGuard, train_loop
from bert_jax.training.metrics import BEFORE, evaluation_at
from bert_jax.training.start import lock, print_differences
from bert_jax.training.tracker import Tracker


def train(
    config: ConfigDict,
    directory: epath.Path,
    source: ConfigSource,
    *,
    pretrained: Pretrained | None,
    teacher: Pretrained | None,
    open_input: Callable[[], RunInput],
    write_pages: Callable[[epath.Path], None],
) -> dict[str, Any] | None:
    """Runs or resumes pre-training, up to the last step of the config.

    `bert_jax.commands.pretrain.pretrain` reads and makes what the arguments hold.

    Args:
      config: A config with the values of the given weights, teacher and token store.
      directory: The work directory. It gets config.json, tokenizer/, data/ (unless
        config.data.store is elsewhere), checkpoints/, metrics.jsonl, tensorboard/, and at
        the end results.json, curves.png and report.html.
      source: The file and the flags that the config comes from.
      pretrained: The model that the run begins with; None if it begins otherwise, or goes on.
      teacher: The teacher; None if the config has none.
      open_input: Opens the input, and prepares it first if it is missing.
      write_pages: Writes report.html and curves.png of a work directory.

    Returns:
      The final held-out results (empty if nothing is held out), or None if a signal
      stopped the run before its end.
    """
    is_first = multihost.is_first()
    with ExitStack() as stack:
        # Check everything that can be checked before any work, and lock the directory.
        with multihost.agreed():
            trainer = make_trainer(config, teacher=teacher)
            warnings = checks.check(config, directory, trainer, pretrained, teacher)
            stack.enter_context(lock(directory))
            weights.copy_vocabulary(config, directory, pretrained or teacher)
        print_differences(config, source)

        # Input: it may take hours to prepare.
        run_input = open_input()

        # State: from a checkpoint, from weights or from the seed.
        guard = stack.enter_context(PreemptionGuard())
        checkpointer = stack.enter_context(closing(open_checkpoints(directory, config)))
        state, resume = weights.first_state(
            config, directory, trainer, checkpointer, pretrained, teacher, run_input.tokenizer
        )
        step = int(state.step)
        if results := multihost.run_on_process_zero(
            print_finished, config, directory, step, write_pages
        ):
            return results
        # The config is written only now, because opening the input may fail.
        multihost.run_on_process_zero(weights.claim, config, directory, pretrained)
        reports = corpus_reports(run_input, config, trainer.stages) if is_first else []
        announce(config, trainer, run_input, directory, step, warnings, reports)

        # Loop.
        guesses_at_random = weights.guesses_at_random(config, pretrained)
        run = PretrainingRun(config, directory, trainer, run_input, resume, guesses_at_random)
        tracker = stack.enter_context(Tracker(config, directory))
        step, times = train_loop(run, state, resume, checkpointer, guard, tracker)
        if guard.requested:
            return None

        # Results.
        results = run.results | {"step": step} | times | {"corpus": reports}
        if is_first:
            if config.init_from and (before := evaluation_at(directory, 0)):
                results[BEFORE] = before
            files.write_json(directory / workdir.RESULTS, results)
            write_pages(directory)
            tracker.summarize(results)
            summarize(config, trainer.objective.metrics, results, directory)
        return results


def print_finished(
    config: ConfigDict,
    directory: epath.Path,
    step: int | None,
    write_pages: Callable[[epath.Path], None],
) -> dict[str, Any] | None:
    """Reprints and returns the results of a finished run; None if it is not finished."""
    # Parts from outside are refused, as in a run that is not finished.
    checks.check_family(config)
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
