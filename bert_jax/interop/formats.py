"""The formats that a pre-trained BERT is kept in: found out, read and written."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.interop.google import is_google, read_google, write_google
from bert_jax.interop.huggingface import is_huggingface, read_huggingface, write_huggingface
from bert_jax.interop.native import is_native, read_native, write_native
from bert_jax.interop.pretrained import Pretrained
from bert_jax.workdir import BEST, CHECKPOINTS, CONFIG, RESULTS, SWEEP, TOKENIZER

WRITERS: dict[str, Callable[[Pretrained, Path], None]] = {
    "bert_jax": write_native,
    "huggingface": write_huggingface,
    "google": write_google,
}
_CONFIGS = ("config.json", "bert_config.json")
_UNFINISHED = "unfinished_conversion"
_SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".bin", ".index")
_KINDS = (
    (is_native, read_native),
    (is_huggingface, read_huggingface),
    (is_google, read_google),
)


def read(path: str | Path, lowercase: bool | None = None, step: int | None = None) -> Pretrained:
    """Reads a BERT of any known kind.

    Args:
      path: A work directory of bert_jax or one of its checkpoints; a directory of
        `transformers`; a TF1 checkpoint of google-research/bert or its directory.
      lowercase: Whether the vocabulary is an uncased one, where the source does not
        say it (Google's); None: as its entries suggest.
      step: Of a work directory, the step of the checkpoint; None: the newest.

    Raises:
      UserError: it is none of these, or damaged.
    """
    path = files.open_path(path, "the BERT to read")
    if step is not None:
        if not (path / CHECKPOINTS).is_dir():
            raise UserError(f"{path} is no work directory with checkpoints: it has no step {step}")
        if step < 0:
            raise UserError(f"step is {step}; it must be that of a checkpoint in {path}")
        # The best checkpoint of fine-tuning has a folder of its own.
        kept = path / BEST / str(step)
        path = kept if kept.is_dir() else path / CHECKPOINTS / str(step)
    if files.is_remote(path):
        return _read_remote(_without_file(path), lowercase)
    return _read(_without_file(path.absolute()), lowercase)


def _read_remote(path: epath.Path, lowercase: bool | None) -> Pretrained:
    """Reads a work directory where it is, and other kinds from a scratch copy of their files."""
    if is_native(path):
        return _read(path, lowercase)
    # A directory, or the prefix of a checkpoint's files.
    names = files.list_files(path)
    folder, prefix = (path, "") if names else (path.parent, path.name)
    names = [name for name in names or files.list_files(folder) if _is_wanted(name)]
    if any(name.endswith(".safetensors") for name in names):
        names = [name for name in names if not name.endswith(".bin")]
    with files.local_copy(folder, names) as local:
        try:
            pretrained = _read(local / prefix, lowercase)
        except UserError as error:
            raise UserError(str(error).replace(str(local), str(folder))) from error
    warnings = [warning.replace(str(local), str(folder)) for warning in pretrained.warnings]
    return dataclasses.replace(pretrained, source=str(path), warnings=warnings)


def _is_wanted(name: str) -> bool:
    """Whether a file may be of a BERT: a folder may hold much else."""
    return "/" not in name and (name.endswith(_SUFFIXES) or ".data-" in name)


def _read(path: Path | epath.Path, lowercase: bool | None) -> Pretrained:
    for is_kind, read_kind in _KINDS:
        if not is_kind(path):
            continue
        if lowercase is None:
            return read_kind(path)
        if read_kind is read_google:
            return read_google(path, lowercase)
        raise UserError(f"{path} says itself whether it is lower-cased: leave that out")
    if not path.exists():
        raise UserError(f"{path} does not exist; give the model's directory or checkpoint")
    if (path / SWEEP).exists():
        raise UserError(f"{path} holds a sweep; give one of its runs: {SWEEP} names the best_run")
    if all((path / name).exists() for name in (CONFIG, TOKENIZER, RESULTS)):
        raise UserError(
            f"the checkpoints of {path} are not there any more: of a sweep only the best run keeps "
            "them"
        )
    if all((path / name).exists() for name in (CONFIG, TOKENIZER)):
        raise UserError(f"{path} has no checkpoint yet: its run has only begun")
    raise UserError(
        f"{path} holds no BERT that is known here: a work directory of bert_jax, a Hugging Face "
        "directory (model.safetensors or pytorch_model.bin), or a Google checkpoint "
        "(bert_model.ckpt.index and bert_config.json)"
    )


def write(pretrained: Pretrained, path: str | Path, kind: str) -> None:
    """Writes a directory, complete with its last file; the weights are used up.

    Raises:
      UserError: the directory is not empty, or cannot be written to; a fine-tuned model is
        to be another kind than "huggingface".
    """
    if pretrained.head and kind != "huggingface":
        raise UserError(
            f"{pretrained.source} is fine-tuned, which only Hugging Face's classes have a place "
            "for; write --to=huggingface"
        )
    path = files.open_path(path, "the directory to write")
    if files.is_remote(path):
        _write_remote(pretrained, path, kind)
        return
    path = path.resolve()
    unfinished = path / _UNFINISHED
    if path.exists() and (not path.is_dir() or set(path.iterdir()) - {unfinished}):
        raise UserError(f"{path} exists already; give a new or empty directory")
    is_new = not path.exists()
    # What a conversion that was killed has left.
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        WRITERS[kind](pretrained, unfinished)
        # Inside the directory, which may be another disk's; without its config it is no model.
        for part in sorted(unfinished.iterdir(), key=lambda part: part.name in _CONFIGS):
            part.rename(path / part.name)
        unfinished.rmdir()
    except BaseException:
        shutil.rmtree(path if is_new else unfinished, ignore_errors=True)
        raise


def _write_remote(pretrained: Pretrained, path: epath.Path, kind: str) -> None:
    """Writes to object storage: the config, without which it is no model, comes last."""
    mark = path / _UNFINISHED
    if mark.exists():
        # All that is here was left by a conversion that was killed.
        files.remove_directory(path)
    if files.list_files(path):
        raise UserError(f"{path} exists already; give a new or empty directory")
    files.write_whole(mark, b"")
    try:
        if kind == "bert_jax":
            write_native(pretrained, path)
        else:
            with files.local_output(path, last=_CONFIGS) as local:
                WRITERS[kind](pretrained, local)
        mark.unlink()
    except BaseException:
        files.remove_directory(path)
        raise


def _without_file(path: Path | epath.Path) -> Path | epath.Path:
    """What a completed file name stands for: its directory, or its checkpoint's prefix."""
    if path.suffix == ".index" and path.is_file():
        return path.with_suffix("")
    if path.name == CHECKPOINTS:
        return path.parent
    return path.parent if path.is_file() else path
