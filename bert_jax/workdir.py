"""The work directory: whose it is, and what lies where in it."""

import contextlib
import fcntl
import io
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import storage, tokenizers
from bert_jax.config import finetuning as finetuning_config
from bert_jax.errors import UserError
from bert_jax.tokenizers import Tokenizer

CONFIG = "config.json"
DATA = "data"
TOKENIZER = "tokenizer"
CHECKPOINTS = "checkpoints"
# Of fine-tuning: the parameters that were best by the dev metric.
BEST = "best"
# int64 [V]: how often each token occurs in the training text; the unigram
# baseline of evaluation.
TOKEN_COUNTS = "token_counts.npy"
# The metadata of the token store that the run was begun with.
CORPUS = "corpus.json"
RESULTS = "results.json"
CURVES = "curves.png"
# Of a directory that holds many runs: what came of them, and where they are.
SWEEP = "sweep.json"
RUNS = "runs"
PROFILE = "profile"

# What may differ from one start to the next: it changes where and how the run is
# computed, stored or watched, never what it computes.
_FREE = (
    "workdir",
    "sharding",
    "max_replicated_share",
    "remat",
    "mesh.",
    "checkpoint.",
    "eval.",
    "log.",
    "profile.",
    "data.store",
    "data.num_processes",
    "data.num_threads",
    "data.prefetch_batches",
    "train.num_steps",
)
# Of fine-tuning these are the steps whose best one is the result.
_FREE_BEFORE_FINE_TUNING = ("eval.every_steps",)


def claim(workdir: epath.PathLike, config: ConfigDict) -> None:
    """Creates the work directory and makes it this config's, which `check` has allowed."""
    path = epath.Path(workdir)
    storage.make_directory(path)
    write_json(path / CONFIG, config_lib.to_dict(config))


def check(workdir: epath.PathLike, config: ConfigDict) -> list[str]:
    """Checks, without writing anything, that this config may run in a work directory.

    Returns:
      Warnings, a sentence each, about changes that are allowed but matter.

    Raises:
      UserError: the directory holds another run; the message names the difference.
    """
    path = epath.Path(storage.open_path(workdir, "--workdir"))
    _check_directory(path)
    if (path / SWEEP).exists() or any((path / RUNS).glob("rate_*")):
        raise UserError(
            f"{path} holds a sweep; choose another --workdir, or one of its runs in {path / RUNS}"
        )
    now = config_lib.to_dict(config)
    warnings = []
    if (path / CONFIG).exists() and has_checkpoints(path) and not (path / CORPUS).exists():
        raise UserError(
            f"{path} holds converted weights, not a run; choose another --workdir and start from "
            f"them: --config.init_from={path}"
        )
    if (path / CONFIG).exists():
        if "model_type" in _read_config(path):
            raise UserError(
                f"{path} holds a model of Hugging Face, not a run; choose another --workdir (to "
                f"start from its weights: --config.init_from={path})"
            )
        values = _values(path)
        if is_finetuning(values) != is_finetuning(now):
            kind = "fine-tuning" if is_finetuning(values) else "pre-training"
            raise UserError(
                f"{path} holds a run of {kind}; choose another --workdir (to start from its "
                f"weights: --config.init_from={path})"
            )
        changed = config_lib.differences(values, now)
        for key, (old, new) in changed.items():
            fixed = key in _FREE_BEFORE_FINE_TUNING and is_finetuning(now)
            if fixed or not key.startswith(_FREE):
                raise UserError(
                    f"{path} holds another run: there config.{key} is {old!r}, here it is "
                    f"{new!r}; choose another --workdir or give the same value"
                )
        if "train.num_steps" in changed:
            old, new = changed["train.num_steps"]
            warnings.append(
                f"config.train.num_steps was {old} and is now {new}: stages and learning rate "
                "follow the new value from here on"
            )
    elif has_checkpoints(path):
        raise UserError(f"{path} has checkpoints but no {CONFIG}; choose another --workdir")
    return warnings


def check_no_run(workdir: epath.PathLike) -> None:
    """Refuses, for a sweep, a directory that holds a single run."""
    if (epath.Path(workdir) / CONFIG).exists():
        raise UserError(f"{workdir} holds a run, not a sweep; choose another --workdir")


def _check_directory(path: epath.Path) -> None:
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; --workdir must be a directory, or not exist yet")


def has_checkpoints(workdir: epath.PathLike) -> bool:
    """Whether a step has been saved in it."""
    return newest_checkpoint(workdir) is not None


def newest_checkpoint(workdir: epath.PathLike) -> int | None:
    """The last step that was saved in it, whole or damaged."""
    folder = epath.Path(workdir) / CHECKPOINTS
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdecimal()), default=None)


def check_same_run(other: epath.PathLike, config: ConfigDict, also_free: tuple[str, ...]) -> None:
    """Checks that the state of another run would mean the same under this config.

    Args:
      other: The other's work directory.
      config: This run's.
      also_free: Keys, or beginnings of keys, that may differ beside those that may
        differ between two starts of one run.

    Raises:
      UserError: there is no other run, or its model or its batches are not the same.
    """
    other = epath.Path(storage.open_path(other, "config.resume_from"))
    if not all((other / name).exists() for name in (CONFIG, CORPUS)) or not has_checkpoints(other):
        raise UserError(
            f"config.resume_from: {other} is no work directory of a run with checkpoints (weights "
            "alone are for config.init_from)"
        )
    changed = config_lib.differences(_values(other), config_lib.to_dict(config))
    for key, (old, new) in changed.items():
        if not key.startswith(_FREE + also_free):
            raise UserError(
                f"config.resume_from: in {other} config.{key} is {old!r}, here it is {new!r}; to "
                "take over its state it must be the same (weights alone: config.init_from)"
            )


def check_same_corpus(other: epath.PathLike, workdir: epath.PathLike) -> None:
    """Checks that a place in another run's data is the same place in this one's.

    Raises:
      UserError: it was trained on another corpus.
    """
    there, here = (_read(epath.Path(path) / CORPUS) for path in (other, workdir))
    for key, (old, new) in config_lib.differences(there, here).items():
        old, new = _first_difference(old, new)
        raise UserError(
            f"config.resume_from: {other} was trained on another corpus: there {key} is {old!r}, "
            f"here it is {new!r}"
        )


@contextlib.contextmanager
def lock(workdir: epath.PathLike) -> Iterator[None]:
    """Creates the work directory and keeps every other training process out of it.

    One that it created, and in which nothing could begin, is removed again.

    Object storage has no locks: there nobody is kept out.

    Raises:
      UserError: it is a file, or another process of this machine is training in it.
    """
    path = epath.Path(workdir)
    _check_directory(path)
    is_new = not path.exists()
    storage.make_directory(path)
    if storage.is_remote(path) or jax.process_index() != 0:
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            # The lock ends with the process, however that ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is training in {path}") from None
        except OSError:
            pass  # A file system without locks.
        try:
            yield
        finally:
            if is_new:
                # What is not empty stays.
                with contextlib.suppress(OSError, ValueError):
                    path.rmdir()
    finally:
        os.close(descriptor)


def store_directory(workdir: epath.PathLike, config: ConfigDict) -> epath.Path:
    """Where the run's token store is."""
    if config.data.store:
        return epath.Path(storage.open_path(config.data.store, "config.data.store"))
    return epath.Path(workdir) / DATA


def load_config(workdir: epath.PathLike) -> ConfigDict:
    """Reads the config that a run was started with.

    Raises:
      UserError: `workdir` is no work directory.
    """
    path = epath.Path(storage.open_path(workdir, "--workdir"))
    values = _read_config(path)
    try:
        return parse_config(values)
    except UserError as error:
        raise UserError(f"{path / CONFIG}: {error}") from error


def parse_config(values: Mapping[str, Any]) -> ConfigDict:
    """The config of a pre-training or a fine-tuning run, of plain dicts and lists.

    Raises:
      UserError: an unknown key or a value of another type.
    """
    return (finetuning_config if is_finetuning(values) else config_lib).from_dict(values)


def is_finetuning(config: Mapping[str, Any] | ConfigDict) -> bool:
    """Whether a config is of fine-tuning: pre-training's has no task."""
    return "task" in config


def claim_corpus(
    workdir: epath.PathLike,
    metadata: dict[str, Any],
    tokenizer: Tokenizer,
    token_counts_V: np.ndarray | None,
) -> None:
    """Makes the work directory usable without its token store, or checks they belong together.

    Args:
      workdir: The work directory.
      metadata: The store's metadata.json; of fine-tuning, what tells its data from others.
      tokenizer: The store's tokenizer, copied.
      token_counts_V: int64 counts of the training split, copied; None in fine-tuning.

    Raises:
      UserError: the run began with another corpus; the message names the difference.
    """
    path = epath.Path(workdir)
    if (path / CORPUS).exists():
        for key, (old, new) in config_lib.differences(_read(path / CORPUS), metadata).items():
            old, new = _first_difference(old, new)
            raise UserError(
                f"the run in {path} began with another corpus: there {key} is {old!r}, in the "
                f"{'data' if token_counts_V is None else 'token store'} it is now {new!r}; choose "
                "another --workdir"
            )
        has_counts = token_counts_V is None or (path / TOKEN_COUNTS).exists()
        if (path / TOKENIZER).exists() and has_counts:
            return
    tokenizer.save(path / TOKENIZER)
    if token_counts_V is not None:
        counts = io.BytesIO()
        np.save(counts, np.asarray(token_counts_V), allow_pickle=False)
        storage.write_whole(path / TOKEN_COUNTS, counts.getvalue())
    # Last: its presence means that the other two are there.
    write_json(path / CORPUS, metadata)


def load_vocabulary(workdir: epath.PathLike) -> tuple[Tokenizer, np.ndarray | None]:
    """Returns the tokenizer and token_counts_V (int64); None for these of converted weights."""
    path = epath.Path(workdir)
    if not (path / TOKENIZER).exists():
        raise UserError(f"{path} has no {TOKENIZER}/: no run has begun in it")
    tokenizer = tokenizers.load(path / TOKENIZER)
    if not (path / CORPUS).exists():
        return tokenizer, None
    try:
        content = (path / TOKEN_COUNTS).read_bytes()
        counts = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(
            f"{path / TOKEN_COUNTS} is damaged; remove it and start the run again: a finished "
            "one only writes it anew"
        ) from error
    return tokenizer, counts


def write_json(path: epath.PathLike, values: Any) -> None:
    """Writes a file that is either whole or absent."""
    text = json.dumps(values, indent=2) + "\n"
    storage.write_whole(storage.open_path(path, "the file to write"), text.encode())


def read_json(path: epath.PathLike) -> Any:
    """Reads what `write_json` wrote."""
    return json.loads(storage.open_path(path, "the file to read").read_bytes())


def _values(path: epath.Path) -> dict[str, Any]:
    """A run's config; keys that came after it began have their defaults."""
    return config_lib.to_dict(load_config(path))


def _read_config(path: epath.Path) -> dict[str, Any]:
    if not (path / CONFIG).exists():
        raise UserError(f"{path} is not a work directory of bert_jax: it has no {CONFIG}")
    return _read(path / CONFIG)


def _read(path: epath.Path) -> dict[str, Any]:
    try:
        values = read_json(path)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged: it should hold a JSON object")
    return values


def _first_difference(old: Any, new: Any) -> tuple[Any, Any]:
    """Of two lists (of files) the first entries that only one of them has."""
    if not isinstance(old, list) or not isinstance(new, list):
        return old, new
    only_old, only_new = ([e for e in a if e not in b] for a, b in ((old, new), (new, old)))
    return only_old[:1] or "without it", only_new[:1] or "without it"
