"""The start of a run: locks its work directory, checks that it belongs to the run, and claims it.

Runs of pre-training and of fine-tuning start alike.
"""

import contextlib
import io
import json
import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config.command_line import ConfigSource
from bert_jax.config.schema import Owner
from bert_jax.tokenizers import Tokenizer
from bert_jax.training import workdir
from bert_jax.training.stages import comparable

_ACCUMULATION = "train.gradient_accumulation_steps"
# The keys that identify the data of fine-tuning or a token store. Paths do not, as files may move.
_IDENTITY = ("task", "rows", "sha256", "tokenizer", "format_version", "vocab_size", "splits")


@contextlib.contextmanager
def lock(directory: epath.PathLike) -> Iterator[None]:
    """Creates the work directory and locks out other training processes on this machine.

    New directories in which nothing was written are removed again. Object storage has no locks.
    """
    path = epath.Path(files.checked_path(directory, "--workdir"))
    _check_names(path)
    new = [] if files.is_remote(path) else [x for x in (path, *path.parents) if not x.exists()]
    path.mkdir(parents=True, exist_ok=True)
    if jax.process_index() != 0:
        yield
        return
    with files.lock_directory(path, f"another process is training in {path}"):
        try:
            yield
        finally:
            # rmdir fails if the directory is not empty, which is intended.
            with contextlib.suppress(OSError, ValueError):
                for folder in new:
                    folder.rmdir()


def check(directory: epath.PathLike, config: ConfigDict) -> list[str]:
    """Checks that a work directory is new or belongs to this config. Writes nothing.

    Returns:
      Warnings, one sentence each, about changes that are allowed but affect the run.
    """
    path = epath.Path(files.checked_path(directory, "--workdir"))
    _check_names(path)
    if not (path / workdir.CONFIG).exists():
        for kind, is_held in {
            f"a sweep (its runs are in {workdir.RUNS}/)": any((path / workdir.RUNS).glob("rate_*")),
            "a token store (for --config.data.store)": (path / "metadata.json").exists(),
            f"checkpoints without their {workdir.CONFIG}": workdir.has_checkpoints(path),
        }.items():
            if is_held:
                raise UserError(f"{path} holds {kind}, not a run; choose another --workdir")
        return []
    values = files.read_json(path / workdir.CONFIG)
    is_converted = workdir.has_checkpoints(path) and not (path / workdir.CORPUS).exists()
    is_model = is_converted or "model_type" in values
    if is_model or workdir.is_finetuning(values) != workdir.is_finetuning(config):
        run = "a run of fine-tuning" if workdir.is_finetuning(values) else "a run of pre-training"
        raise UserError(
            f"{path} holds {'the weights of a model' if is_model else run}; choose another "
            "--workdir (to start from its weights: "
            f"--config.init_from={shlex.quote(str(path))})"
        )
    before = workdir.load_config(path)
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


def check_no_run(directory: epath.PathLike, what: str) -> None:
    """Refuses to start several runs, such as "a sweep", in a directory that holds a single run."""
    if (epath.Path(directory) / workdir.CONFIG).exists():
        raise UserError(f"{directory} holds a run, not {what}; choose another --workdir")


def check_same_run(other: epath.PathLike, config: ConfigDict) -> None:
    """Checks that this config can continue from another run's state."""
    other = epath.Path(files.checked_path(other, "config.resume_from"))
    is_run = all((other / name).exists() for name in (workdir.CONFIG, workdir.CORPUS))
    if not (is_run and workdir.has_checkpoints(other)):
        raise UserError(
            f"config.resume_from: {other} is not the work directory of a run with checkpoints "
            "(to take only weights, use config.init_from)"
        )
    changed = _changed(other, workdir.load_config(other), config)
    if key := _fixed_key(config, changed, (Owner.WEIGHTS, Owner.RUN)):
        old, new = changed[key]
        raise UserError(
            f"config.resume_from: in {other} config.{key} is {old!r}, not {new!r}; give the "
            "same value to continue from its state (to take only weights, use "
            "config.init_from)"
        )


def check_same_corpus(other: epath.PathLike, directory: epath.PathLike) -> None:
    """Refuses to continue another run if it was trained on a different corpus."""
    corpora = (workdir.read_corpus(path) for path in (other, directory))
    if difference := _difference(*corpora):
        key, old, new = difference
        raise UserError(
            f"config.resume_from: {other} was trained on another corpus: its {key} is {old!r}, "
            f"not {new!r}"
        )


def claim(directory: epath.PathLike, config: ConfigDict) -> None:
    """Writes the config, which `check` has accepted."""
    path = epath.Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    files.write_json(path / workdir.CONFIG, config_lib.to_dict(config))


def claim_corpus(
    directory: epath.PathLike,
    metadata: dict[str, Any],
    tokenizer: Tokenizer,
    token_counts_V: np.ndarray | None,
) -> None:
    """Checks that the run began with this corpus; a new run saves its metadata and vocabulary.

    Args:
      metadata: The store's metadata.json; in fine-tuning, the values that identify the data.
      token_counts_V: int64 counts of the training split; None in fine-tuning.
    """
    path = epath.Path(directory)
    if (path / workdir.CORPUS).exists():
        if difference := _difference(workdir.read_corpus(path), metadata):
            key, old, new = difference
            data = "data" if token_counts_V is None else "token store"
            raise UserError(
                f"the run in {path} began with another corpus: its {key} was {old!r} and is now "
                f"{new!r} in the {data}; choose another --workdir"
            )
        return
    tokenizer.save(path / workdir.TOKENIZER)
    if token_counts_V is not None:
        counts = io.BytesIO()
        np.save(counts, np.asarray(token_counts_V), allow_pickle=False)
        files.write_whole(path / workdir.TOKEN_COUNTS, counts.getvalue())
    # Written last: its presence means that the other two are complete.
    files.write_json(path / workdir.CORPUS, metadata)


def print_differences(config: ConfigDict, source: ConfigSource) -> None:
    """Prints how the config differs from its file."""
    found = config_lib.differences(*map(config_lib.to_dict, (source.values, config)))
    before, now = found.get("train.stages", ((), ()))
    if len(before) == len(now):
        # Only the keys that differ, instead of whole stages.
        found.pop("train.stages", None)
        for i, stages in enumerate(zip(before, now, strict=True)):
            of_stage = config_lib.differences(*stages)
            found |= {f"train.stages[{i}].{key}": values for key, values in of_stage.items()}
    for key, (before, now) in found.items():
        say(f"config.{key} is {json.dumps(now)}, not {json.dumps(before)} as in {source.name}")


def _changed(path: epath.Path, before: ConfigDict, now: ConfigDict) -> dict[str, tuple[Any, Any]]:
    """Finds the keys that the config of the run in `path` has with other values, with both."""
    if workdir.is_finetuning(before):
        return config_lib.differences(*map(config_lib.to_dict, (before, now)))
    ends = before.train.num_steps, now.train.num_steps
    step = min(workdir.newest_checkpoint(path) or 0, *ends)
    return config_lib.differences(*(comparable(config, step) for config in (before, now)))


def _fixed_key(
    config: ConfigDict, changed: Mapping[str, tuple[Any, Any]], owners: Collection[Owner]
) -> str | None:
    """Finds the first of the changed keys that one of the owners determines; None if none does.

    The store compares its own keys, because files may have moved to another directory.
    """
    fields = config_lib.fields(config)
    # The other run may be a fine-tuning run, whose config has other keys.
    return next((key for key in changed if key not in fields or fields[key].owner in owners), None)


def _check_names(path: epath.Path) -> None:
    files.check_no_pattern(path)
    for child in path.iterdir() if path.is_dir() and not files.is_remote(path) else ():
        # What a run writes and removes must be inside its directory.
        if os.path.islink(child):
            raise UserError(f"{child} is a symbolic link; remove it or choose another --workdir")


def _difference(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """Finds the first key of the identity of two data sets that differs, with both values."""
    before, now = ({key: data.get(key) for key in _IDENTITY} for data in (before, now))
    found = config_lib.differences(before, now).items()
    return next(((key, *values) for key, values in found), None)
