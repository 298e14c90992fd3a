"""What `python -m bert_jax.main` and `bert_jax.train` do for one run."""

from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax.commands.complete_config import complete_config
from bert_jax.commands.open_input import open_run_input
from bert_jax.config.command_line import ConfigSource
from bert_jax.pretraining.train import train


def pretrain(
    config: ConfigDict, directory: epath.PathLike, source: ConfigSource | None = None
) -> dict[str, Any] | None:
    """Runs or resumes pre-training with a validated config; see `bert_jax.pretraining.train.train`.

    Values that a token store, a teacher or the weights of config.init_from determine are filled in.
    """
    source = source or ConfigSource("the given config", config)
    return train(
        epath.Path(directory),
        source,
        complete=lambda: complete_config(config, directory, source),
        open_input=lambda completed: open_run_input(completed, directory),
        write_pages=write_pages,
    )


def write_pages(directory: epath.Path) -> None:
    """Writes report.html and curves.png of a run at its end."""
    from bert_jax.reports import page

    page.write_pages(directory)
