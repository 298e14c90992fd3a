"""The work directory: the names of its files, and what can be read of a run."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tokenizers import Tokenizer

CONFIG = "config.json"
DATA = "data"
TOKENIZER = "tokenizer"
# The vocabulary of config.init_from, if the run needs a copy of it.
INITIAL_VOCABULARY = "initial_vocabulary"
# The longest sequences that the weights of config.init_from were trained with.
INITIAL_TRAINING = "initial_training.json"
CHECKPOINTS = "checkpoints"
# The parameters of fine-tuning with the best validation score.
BEST = "best"
# int64 [V]: how often each token occurs in the training text; evaluation's unigram baseline.
TOKEN_COUNTS = "token_counts.npy"
# The metadata of the token store that the run began with.
CORPUS = "corpus.json"
# The tokens of config.eval.other_text, and what they were made of.
OTHER_TEXT, OTHER_TEXT_RECORD = "other_text", "other_text.json"
RESULTS = "results.json"
CURVES = "curves.png"
REPORT = "report.html"
# A sweep: its results, and the directory of its runs.
SWEEP = "sweep.json"
RUNS = "runs"
# The scores of all tasks of GLUE, beside a directory for each.
GLUE = "glue.json"
PROFILE = "profile"


def has_checkpoints(workdir: epath.PathLike) -> bool:
    """Returns whether a step has been saved in a directory."""
    return newest_checkpoint(workdir) is not None


def checkpoint_folder(workdir: epath.PathLike, step: int | None = None) -> epath.Path:
    """Returns the folder of the best checkpoint, if the run is of fine-tuning, or of all.

    With `step`, the folder of the best is returned only if it has this step.
    """
    path = epath.Path(workdir)
    best = saved_steps(path / BEST)
    found = best if step is None else step in best
    return path / (BEST if found else CHECKPOINTS)


def newest_checkpoint(workdir: epath.PathLike) -> int | None:
    """Returns the last step that was saved in a directory, even if it is damaged."""
    return max(saved_steps(epath.Path(workdir) / CHECKPOINTS), default=None)


def saved_steps(folder: Path | epath.Path) -> list[int]:
    """Lists the steps in a folder of checkpoints in order, damaged ones too."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def store_directory(workdir: epath.PathLike, config: ConfigDict) -> epath.Path:
    """Returns the directory of the run's token store."""
    if config.data.store:
        return epath.Path(files.checked_path(config.data.store, "config.data.store"))
    return epath.Path(workdir) / DATA


def load_config(workdir: epath.PathLike) -> ConfigDict:
    """Reads the config that a run was last started with."""
    path = epath.Path(files.checked_path(workdir, "--workdir"))
    if not (path / CONFIG).exists():
        raise UserError(f"{path} is not a work directory of bert_jax: it has no {CONFIG}")
    return config_lib.read_stored(path / CONFIG)


def is_finetuning(config: Mapping[str, Any] | ConfigDict) -> bool:
    """Returns whether a config is for fine-tuning. Only those have a task."""
    return "task" in config


def holds_finetuning(workdir: epath.PathLike) -> bool:
    """Returns whether a directory is the work directory of a fine-tuning run."""
    path = epath.Path(workdir) / CONFIG
    return path.exists() and is_finetuning(files.read_json(path))


def read_corpus(workdir: epath.PathLike) -> dict[str, Any]:
    """Reads the identity of the run's data; see `bert_jax.training.start.claim_corpus`."""
    return files.read_json(epath.Path(workdir) / CORPUS)


def load_vocabulary(workdir: epath.PathLike) -> tuple[Tokenizer, np.ndarray | None]:
    """Reads the tokenizer and token_counts_V (int64), which is None for converted weights."""
    path = epath.Path(workdir)
    tokenizer = tokenizers.load(path / TOKENIZER)
    if not (path / CORPUS).exists():
        return tokenizer, None
    with files.naming(path / TOKEN_COUNTS):
        counts = io.BytesIO(files.read_whole(path / TOKEN_COUNTS))
        return tokenizer, np.load(counts, allow_pickle=False)
