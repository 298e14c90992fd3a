"""The formats that a pre-trained BERT is kept in: found out, read and written."""

import shutil
from collections.abc import Callable
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.interop.google import is_google, read_google, write_google
from bert_jax.interop.huggingface import is_huggingface, read_huggingface, write_huggingface
from bert_jax.interop.native import is_native, read_native, write_native
from bert_jax.interop.pretrained import Pretrained

WRITERS: dict[str, Callable[[Pretrained, Path], None]] = {
    "bert_jax": write_native,
    "huggingface": write_huggingface,
    "google": write_google,
}
_KINDS = (
    (is_native, read_native),
    (is_huggingface, read_huggingface),
    (is_google, read_google),
)


def read(path: str | Path) -> Pretrained:
    """Reads a BERT of any known kind.

    Args:
      path: A work directory of bert_jax or one of its checkpoints; a directory of
        `transformers`; a TF1 checkpoint of google-research/bert or its directory.

    Raises:
      UserError: it is none of these, or damaged.
    """
    path = Path(path).absolute()
    for is_kind, read_kind in _KINDS:
        if is_kind(path):
            return read_kind(path)
    there = "holds" if path.exists() else "does not exist; wanted is"
    raise UserError(
        f"{path} {there} no BERT that is known here: a work directory of bert_jax, a Hugging Face "
        "directory (model.safetensors or pytorch_model.bin), or a Google checkpoint "
        "(bert_model.ckpt.index and bert_config.json)"
    )


def write(pretrained: Pretrained, path: str | Path, kind: str) -> None:
    """Writes a directory that is either whole or absent; the weights are used up.

    Raises:
      UserError: the directory is not empty.
    """
    path = Path(path).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists already; give a new or empty directory")
    partial = path.with_name(f"{path.name}.partial")
    if partial.exists():
        raise UserError(
            f"{partial} is in the way, left by a conversion that was interrupted or is still "
            "under way; remove it"
        )
    partial.mkdir(parents=True)
    try:
        WRITERS[kind](pretrained, partial)
        if path.exists():
            path.rmdir()
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
