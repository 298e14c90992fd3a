"""Trains a model on text: `train` opens the run, and `training.engine` is the run itself."""

from collections.abc import Callable
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax.config.command_line import ConfigSource
from bert_jax.interop.pretrained import Pretrained
from bert_jax.pretraining import checks
from bert_jax.pretraining.build import make_trainer
from bert_jax.pretraining.first_state import copy_vocabulary
from bert_jax.pretraining.input import RunInput
from bert_jax.pretraining.run import PretrainingRun
from bert_jax.pretraining.summary import show
from bert_jax.training.engine import run_to_end
from bert_jax.training.start import print_differences


def train(
    directory: epath.Path,
    source: ConfigSource,
    *,
    complete: Callable[[], tuple[ConfigDict, Pretrained | None, Pretrained | None]],
    open_input: Callable[[ConfigDict], RunInput],
    write_pages: Callable[[epath.Path], None],
) -> dict[str, Any] | None:
    """Runs or resumes pre-training, up to the last step of the config.

    Args:
      directory: The work directory. It gets config.json, tokenizer/, data/ (unless
        config.data.store is elsewhere), checkpoints/, metrics.jsonl, tensorboard/, and at
        the end results.json, curves.png and report.html.
      source: The file and the flags that the config comes from.
      complete: Returns the config with the values of the given weights, teacher and token store,
        the model that the run begins with, and its teacher.
      open_input: Opens the input, and prepares it first if it is missing.
      write_pages: Writes report.html and curves.png of a work directory.

    Returns:
      The final held-out results (empty if nothing is held out), or None if a signal
      stopped the run before its end.
    """

    def open_pretraining() -> PretrainingRun:
        config, pretrained, teacher = complete()
        trainer = make_trainer(config, teacher=teacher)
        warnings = checks.check(config, directory, trainer, pretrained, teacher)
        copy_vocabulary(config, directory, pretrained or teacher)
        print_differences(config, source)
        return PretrainingRun(
            config,
            directory,
            trainer,
            warnings,
            pretrained=pretrained,
            teacher=teacher,
            open_input=lambda: open_input(config),
        )

    # With --workdir alone, a finished run opens only its directory.
    is_workdir_alone = source.is_stored and not source.flags
    return run_to_end(
        open_pretraining,
        directory,
        opens_nothing=is_workdir_alone,
        show=show,
        write_pages=write_pages,
    )
