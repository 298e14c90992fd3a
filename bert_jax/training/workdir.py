"""The work directory: the names of its files, and checks that it belongs to a run."""

import contextlib
import io
import json
import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.config.schema import Owner
from bert_jax.tokenizers import Tokenizer
from bert_jax.training.stages import settings_until

CONFIG = "config.json"
DATA = "data"
TOKENIZER = "tokenizer"
# The vocabulary of config.init_from, if the run needs a copy of it.
INITIAL_VOCABULARY = "initial_vocabulary"
# The longest sequences that the weights of config.init_from were trained with.
INITIAL_TRAINING = "initial_training.json"
# How the config differs from the config file.
CONFIG_DIFFERENCES = "config_differences.json"
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
PROFILE = "profile"
_ACCUMULATION = "train.gradient_accumulation_steps"
_DIRECTORIES = (DATA, TOKENIZER, OTHER_TEXT, CHECKPOINTS, BEST, PROFILE)


def claim(
    workdir: epath.PathLike, config: ConfigDict, differences: Mapping[str, Any] | None = None
) -> None:
    """Writes the config, which `check` has accepted, and the `differences`, if given."""
    path = files.make_directory(workdir, "--workdir")
    files.write_json(path / CONFIG, config_lib.to_dict(config))
    if differences is not None:
        files.write_json(path / CONFIG_DIFFERENCES, differences)


def check(workdir: epath.PathLike, config: ConfigDict) -> list[str]:
    """Checks that a work directory is new or belongs to this config. Writes nothing.

    Returns:
      Warnings, one sentence each, about changes that are allowed but affect the run.

    Raises:
      UserError: The directory holds another run; the message names the difference.
    """
    path = epath.Path(files.checked_path(workdir, "--workdir"))
    _check_directory(path)
    if (path / SWEEP).exists() or any((path / RUNS).glob("rate_*")):
        raise UserError(
            f"{path} holds a sweep; choose another --workdir, or one of its runs in {path / RUNS}"
        )
    if not (path / CONFIG).exists():
        if has_checkpoints(path):
            raise UserError(f"{path} has checkpoints but no {CONFIG}; choose another --workdir")
        if (path / "metadata.json").exists():
            raise UserError(
                f"{path} holds a token store (for --config.data.store); choose another --workdir"
            )
        return []
    weights = f"to start from its weights: --config.init_from={shlex.quote(str(path))}"
    is_converted = has_checkpoints(path) and not (path / CORPUS).exists()
    if is_converted or "model_type" in _read_config(path):
        kind = "converted weights" if is_converted else "a Hugging Face model"
        raise UserError(f"{path} holds {kind}, not a run; choose another --workdir ({weights})")
    before = load_config(path)
    if is_finetuning(before) != is_finetuning(config):
        kind = "fine-tuning" if is_finetuning(before) else "pre-training"
        raise UserError(f"{path} holds a {kind} run; choose another --workdir ({weights})")
    changed = _changed(path, before, config)
    if key := _fixed_key(config, changed, (Owner.WEIGHTS, Owner.RUN, Owner.THIS_RUN)):
        (old, new), advice = changed[key], "choose another --workdir or give the same value"
        if key.startswith("train.stages["):
            advice = (
                "the stages of the steps that have run must stay: append a stage, with fractions "
                "of the new config.train.num_steps"
            )
        raise UserError(
            f"{path} holds another run: its config.{key} is {old!r}, not {new!r}; {advice}"
        )
    warnings = []
    if _ACCUMULATION in changed:
        old, new = changed[_ACCUMULATION]
        warnings.append(
            f"later steps are the same only up to rounding: config.{_ACCUMULATION} was {old} and "
            f"is now {new}"
        )
    if keys := [f"config.{key}" for key in ("train.num_steps", "train.stages") if key in changed]:
        warnings.append(f"from now on, the learning rate follows the new {' and '.join(keys)}")
    return warnings


def _changed(path: epath.Path, before: ConfigDict, now: ConfigDict) -> dict[str, tuple[Any, Any]]:
    """Finds the keys that the config of the run in `path` has with other values, with both.

    Stages are compared as a whole, and once more for the steps that have run.
    """
    changed = config_lib.differences(_comparable(before), _comparable(now))
    if not is_finetuning(before):
        ends = before.train.num_steps, now.train.num_steps
        step = min(newest_checkpoint(path) or 0, *ends)
        changed |= config_lib.differences(
            *(settings_until(config, step) for config in (before, now))
        )
    return changed


def _fixed_key(
    config: ConfigDict, changed: Mapping[str, tuple[Any, Any]], owners: Collection[Owner]
) -> str | None:
    """Finds the first of the changed keys that one of the owners determines; None if none does.

    The store compares its own keys, because files may have moved to another directory.
    """
    fields = config_lib.fields(config)
    # The other run may be a fine-tuning run, whose config has other keys.
    return next((key for key in changed if key not in fields or fields[key].owner in owners), None)


def check_no_run(workdir: epath.PathLike) -> None:
    """Refuses to start a sweep in a directory that holds a single run."""
    if (epath.Path(workdir) / CONFIG).exists():
        raise UserError(f"{workdir} holds a run, not a sweep; choose another --workdir")


def _check_directory(path: epath.Path) -> None:
    for folder in (path, *(path / name for name in _DIRECTORIES)):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file; it must be a directory, or not exist yet")
    files.check_no_pattern(path)
    for child in path.iterdir() if path.exists() and not files.is_remote(path) else ():
        # What a run writes and removes must be inside its directory.
        if os.path.islink(child):
            raise UserError(f"{child} is a symbolic link; remove it or choose another --workdir")


def has_checkpoints(workdir: epath.PathLike) -> bool:
    """Returns whether a step has been saved in a directory."""
    return newest_checkpoint(workdir) is not None


def checkpoint_folder(workdir: epath.PathLike, step: int | None = None) -> epath.Path:
    """Returns the folder of the best checkpoint, if the run is of fine-tuning, or of all.

    With `step`, the folder of the best is returned only if it has this step.
    """
    path = epath.Path(workdir)
    # Pre-training of version 0.1 could keep a best checkpoint, which a longer run does not update.
    best = saved_steps(path / BEST) if holds_finetuning(path) else []
    found = best if step is None else step in best
    return path / (BEST if found else CHECKPOINTS)


def newest_checkpoint(workdir: epath.PathLike) -> int | None:
    """Returns the last step that was saved in a directory, even if it is damaged."""
    return max(saved_steps(epath.Path(workdir) / CHECKPOINTS), default=None)


def saved_steps(folder: Path | epath.Path) -> list[int]:
    """Lists the steps in a folder of checkpoints in order, damaged ones too."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def check_same_run(other: epath.PathLike, config: ConfigDict) -> None:
    """Checks that this config can continue from another run's state.

    Args:
      other: The other run's work directory.
      config: The config of this run.

    Raises:
      UserError: There is no other run, or its model or batches differ.
    """
    other = epath.Path(files.checked_path(other, "config.resume_from"))
    if not all((other / name).exists() for name in (CONFIG, CORPUS)) or not has_checkpoints(other):
        raise UserError(
            f"config.resume_from: {other} is not the work directory of a run with checkpoints "
            "(to take only weights, use config.init_from)"
        )
    changed = _changed(other, load_config(other), config)
    if key := _fixed_key(config, changed, (Owner.WEIGHTS, Owner.RUN)):
        old, new = changed[key]
        raise UserError(
            f"config.resume_from: in {other} config.{key} is {old!r}, not {new!r}; give the "
            "same value to continue from its state (to take only weights, use "
            "config.init_from)"
        )


def check_same_corpus(other: epath.PathLike, workdir: epath.PathLike) -> None:
    """Refuses to continue another run if it was trained on a different corpus."""
    corpora = (read_corpus(path) for path in (other, workdir))
    if difference := _difference(*corpora):
        key, old, new = difference
        raise UserError(
            f"config.resume_from: {other} was trained on another corpus: its {key} is {old!r}, "
            f"not {new!r}"
        )


@contextlib.contextmanager
def lock(workdir: epath.PathLike) -> Iterator[None]:
    """Creates the work directory and locks out other training processes on this machine.

    A new directory in which nothing was written is removed again. Object storage has no locks.

    Raises:
      UserError: The path is a file, or another process is training in the directory.
    """
    path = epath.Path(files.checked_path(workdir, "--workdir"))
    _check_directory(path)
    is_new = not path.exists()
    files.make_directory(path, "--workdir")
    if jax.process_index() != 0:
        yield
        return
    with files.lock_directory(path, f"another process is training in {path}"):
        try:
            yield
        finally:
            if is_new and not files.is_remote(path):
                # rmdir fails if the directory is not empty, which is intended.
                with contextlib.suppress(OSError, ValueError):
                    path.rmdir()


def store_directory(workdir: epath.PathLike, config: ConfigDict) -> epath.Path:
    """Returns the directory of the run's token store."""
    if config.data.store:
        return epath.Path(files.checked_path(config.data.store, "config.data.store"))
    return epath.Path(workdir) / DATA


def load_config(workdir: epath.PathLike) -> ConfigDict:
    """Reads the config that a run was last started with; keys added since then have their defaults.

    Raises:
      UserError: `workdir` is not a work directory.
    """
    path = epath.Path(files.checked_path(workdir, "--workdir"))
    values = _read_config(path)
    try:
        return config_lib.from_stored(values)
    except UserError as error:
        raise UserError(f"{path / CONFIG}: {error}") from error


def is_finetuning(config: Mapping[str, Any] | ConfigDict) -> bool:
    """Returns whether a config is for fine-tuning. Only those have a task."""
    return "task" in config


def holds_finetuning(workdir: epath.PathLike) -> bool:
    """Returns whether a directory is the work directory of a fine-tuning run."""
    path = epath.Path(workdir) / CONFIG
    return path.exists() and is_finetuning(files.read_json(path))


def claim_corpus(
    workdir: epath.PathLike,
    metadata: dict[str, Any],
    tokenizer: Tokenizer,
    token_counts_V: np.ndarray | None,
) -> None:
    """Checks that the run began with this corpus; a new run saves its metadata and vocabulary.

    Args:
      workdir: The work directory.
      metadata: The store's metadata.json; in fine-tuning, the values that identify the data.
      tokenizer: The store's tokenizer.
      token_counts_V: int64 counts of the training split; None in fine-tuning.

    Raises:
      UserError: The run began with another corpus; the message names the difference.
    """
    path = epath.Path(workdir)
    if (path / CORPUS).exists():
        if difference := _difference(read_corpus(path), metadata):
            key, old, new = difference
            data = "data" if token_counts_V is None else "token store"
            raise UserError(
                f"the run in {path} began with another corpus: its {key} was {old!r} and is now "
                f"{new!r} in the {data}; choose another --workdir"
            )
        has_counts = token_counts_V is None or (path / TOKEN_COUNTS).exists()
        if (path / TOKENIZER).exists() and has_counts:
            return
    tokenizer.save(path / TOKENIZER)
    if token_counts_V is not None:
        counts = io.BytesIO()
        np.save(counts, np.asarray(token_counts_V), allow_pickle=False)
        files.write_whole(path / TOKEN_COUNTS, counts.getvalue())
    # Written last: its presence means that the other two are complete.
    files.write_json(path / CORPUS, metadata)


def read_corpus(workdir: epath.PathLike) -> dict[str, Any]:
    """Reads what `claim_corpus` saved: the identity of the run's data."""
    like = {"sources?": [{"path?": ""}], "options?": {}}
    return files.read_json(epath.Path(workdir) / CORPUS, like)


def load_vocabulary(workdir: epath.PathLike) -> tuple[Tokenizer, np.ndarray | None]:
    """Reads the tokenizer and token_counts_V (int64), which is None for converted weights."""
    path = epath.Path(workdir)
    if not (path / TOKENIZER).exists():
        raise UserError(f"{path} has no {TOKENIZER}/; the command of the run writes it again")
    tokenizer = tokenizers.load(path / TOKENIZER)
    if not (path / CORPUS).exists():
        return tokenizer, None
    try:
        counts = np.load(io.BytesIO((path / TOKEN_COUNTS).read_bytes()), allow_pickle=False)
        if counts.shape != (tokenizer.vocab_size,) or counts.dtype != np.int64:
            raise ValueError("it does not have a count for each token of the vocabulary")
    except (ValueError, EOFError, MemoryError) as error:
        raise UserError(
            f"{path / TOKEN_COUNTS} is damaged; remove it and run the same command again (a "
            "finished run is not trained again)"
        ) from error
    return tokenizer, counts


def _comparable(config: ConfigDict) -> dict[str, Any]:
    """Returns the values of a config, with the number of predictions instead of 0."""
    values = config_lib.to_dict(config)
    if not is_finetuning(config):
        for plain, stage in zip(values["train"]["stages"], config.train.stages, strict=True):
            plain["max_predictions_per_seq"] = config_lib.max_predictions(
                stage, config.data.masked_lm_prob, config.data.max_pairs_per_row
            )
    return values


def _read_config(path: epath.Path) -> dict[str, Any]:
    try:
        return files.read_json(path / CONFIG)
    except FileNotFoundError:
        raise UserError(f"{path} is not a work directory of bert_jax: it has no {CONFIG}") from None


def _difference(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """Finds the first key that differs, with both values; for lists, with one differing item."""
    # The other keys determine the report, and the paths of skipped documents change with a move.
    ignored = ("report", "first_dropped")
    before, now = ({k: v for k, v in d.items() if k not in ignored} for d in (before, now))
    real = config_lib.differences(*map(_without_directories, (before, now)))
    for key, (old, new) in config_lib.differences(before, now).items():
        if key not in real:
            continue
        if isinstance(old, list) and isinstance(new, list):
            only_old, only_new = ([e for e in a if e not in b] for a, b in ((old, new), (new, old)))
            old, new = only_old[:1] or "missing", only_new[:1] or "missing"
        return key, old, new
    return None


def _without_directories(corpus: dict[str, Any]) -> dict[str, Any]:
    """Removes the directories of files, which may have moved, from a store's metadata."""
    if not corpus.get("sources"):
        return corpus
    sources = [{**s, "path": os.path.basename(s.get("path", ""))} for s in corpus["sources"]]
    options = (corpus.get("options") or {}) | {"input": "", "vocab_path": "", "add_tokens": ""}
    return corpus | {"options": options, "sources": sorted(sources, key=json.dumps)}
