"""A run of pre-training or fine-tuning from top to bottom: `run_to_end`."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from etils import epath

from bert_jax.base import files
from bert_jax.base.progress import say
from bert_jax.parallel import multihost
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.loop import PreemptionGuard, Run, train_loop
from bert_jax.training.start import lock
from bert_jax.training.tracker import Tracker

Results = dict[str, Any]


def run_to_end(
    open_run: Callable[[], Run],
    directory: epath.Path,
    *,
    opens_nothing: bool,
    show: Callable[[Results, epath.Path], None],
    write_pages: Callable[[epath.Path], None],
) -> Results | None:
    """Runs or resumes a run up to its last step.

    Args:
      open_run: Completes the config, reads the models that it names, and checks everything that can
        be checked before any work.
      directory: The work directory.
      opens_nothing: Whether a finished run prints its results again without a call of `open_run`,
        because its config may come from others and name any file or bucket.
      show: Prints the results of a work directory and what to do next.
      write_pages: Writes report.html and curves.png of a work directory.

    Returns:
      The contents of results.json, or None if a signal stopped the run before its end.
    """

    def finished(step: int | None, num_steps: int) -> Results | None:
        args = directory, step, num_steps, show, write_pages
        return multihost.run_on_process_zero(_finished, *args)

    if opens_nothing:
        # The number of steps of fine-tuning follows from its rows.
        num_steps = workdir.load_config(directory).train.get("num_steps", 0)
        if results := finished(workdir.newest_checkpoint(directory), num_steps):
            return results
    with ExitStack() as stack:
        # Config: lock the directory, complete the config and check it.
        with multihost.agreed():
            stack.enter_context(lock(directory))
            run = open_run()

        # Input: it may take hours to prepare.
        run.open_input()

        # State: from the run's own newest checkpoint, even if the config names another source.
        guard = stack.enter_context(PreemptionGuard())
        folder, kept = directory / workdir.CHECKPOINTS, run.config.checkpoint
        checkpointer = Checkpointer(folder, keep=kept.keep, keep_every_steps=kept.keep_every_steps)
        stack.enter_context(closing(checkpointer))
        restored = checkpointer.restore_newest(run.trainer.abstract_state())
        step = int(restored[0].step) if restored else None
        results = finished(step, run.num_steps)
        if not results:
            state, resume = restored or run.first_state()
            run.begin(resume)
            # The config is written only now, because opening the input may fail.
            multihost.run_on_process_zero(run.claim)
            run.announce(int(state.step))

            # Loop.
            tracker = stack.enter_context(Tracker(run.config, directory))
            step, times = train_loop(run, state, resume, checkpointer, guard, tracker)
            if guard.requested:
                return None

            # Results and pages.
            results = run.end(step, times)
            if multihost.is_first():
                files.write_json(directory / workdir.RESULTS, results)
                write_pages(directory)
                tracker.summarize(results)
                show(results, directory)

        # Predictions.
        scores = run.predict_splits(results, guard)
        if scores and multihost.is_first():
            # The report was written before the scores of the test split were known.
            write_pages(directory)
        return None if scores is None else results | scores


def _finished(
    directory: epath.Path,
    step: int | None,
    num_steps: int,
    show: Callable[[Results, epath.Path], None],
    write_pages: Callable[[epath.Path], None],
) -> Results | None:
    """Reprints and returns the results of a finished run; None if it is not finished.

    Args:
      step: The step of its newest checkpoint; None if it has none, like the runs of a sweep.
      num_steps: The last step of the config.
    """
    path = directory / workdir.RESULTS
    if not path.exists():
        return None
    with files.naming(path):
        results = files.read_json(path)
        last_step, more = results["step"], ""
        is_done = last_step >= num_steps or results.get("stopped_early")
    is_finetuning = workdir.holds_finetuning(directory)
    # A run of pre-training without checkpoints has no weights. A sweep removes those of its runs.
    if not is_done or step != last_step and not (step is None and is_finetuning):
        return None
    if not is_finetuning:
        more = f" To train it further, set a config.train.num_steps above {last_step:,}."
    say(f"This run is finished: step {last_step:,} is done.{more}")
    # A process may have been killed before it wrote the pages.
    if not (directory / workdir.REPORT).exists():
        write_pages(directory)
    with files.naming(path):
        show(results, directory)
    return results
