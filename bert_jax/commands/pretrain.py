"""What `python -m bert_jax.main` and `bert_jax.train` do for one run."""

from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax.commands.complete_config import complete_config
from bert_jax.commands.open_input import open_run_input
from bert_jax.config.command_line import ConfigSource
from bert_jax.pretraining.build import make_trainer
from bert_jax.pretraining.checks import check
from bert_jax.pretraining.first_state import copy_vocabulary
from bert_jax.pretraining.run import PretrainingRun
from bert_jax.pretraining.summary import show
from bert_jax.training.engine import run_to_end
from bert_jax.training.start import print_differences


def pretrain(
    config: ConfigDict, directory: epath.PathLike, source: ConfigSource | None = None
) -> dict[str, Any] | None:
    """Runs or resumes pre-training with a validated config, up to its last step.

    Values that a token store, a teacher or the weights of config.init_from determine are filled in.

    Args:
      directory: The work directory. It gets config.json, tokenizer/, data/ (unless
        config.data.store is elsewhere), checkpoints/, metrics.jsonl, tensorboard/, and at
        the end results.json, curves.png and report.html.
      source: The file and the flags that the config comes from.

    Returns:
      The final held-out results (empty if nothing is held out), or None if a signal
      stopped the run before its end.
    """
    path, source = epath.Path(directory), source or ConfigSource("the given config", config)

    def open_pretraining() -> PretrainingRun:
        completed, pretrained, teacher = complete_config(config, path, source)
        trainer = make_trainer(completed, teacher=teacher)
        warnings = check(completed, path, trainer, pretrained, teacher)
        copy_vocabulary(completed, path, pretrained or teacher)
        print_differences(completed, source)
        return PretrainingRun(
            completed,
            path,
            trainer,
            warnings,
            pretrained=pretrained,
            teacher=teacher,
            open_input=lambda: open_run_input(completed, path),
        )

    return run_to_end(
        open_pretraining,
        path,
        opens_nothing=source.is_workdir_alone,
        show=show,
        write_pages=write_pages,
    )


def write_pages(directory: epath.Path) -> None:
    """Writes report.html and curves.png of a run at its end."""
    from bert_jax.reports import page

    page.write_pages(directory)
