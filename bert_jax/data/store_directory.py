"""The directory that a token store is written to: one writer, nothing foreign removed."""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from etils import epath

from bert_jax import storage
from bert_jax.errors import UserError

_SPLIT = r"(tokens-\d{5}\.bin|(sentence_starts|document_starts|shard_starts|token_counts)\.npy)"
SPLIT_FILES = re.compile(_SPLIT)
STORE_FILES = re.compile(
    rf"(train|heldout)/{_SPLIT}|metadata\.json\.partial"
    r"|tokenizer/(tokenizer\.json|vocab\.txt|sentencepiece\.model)"
)


@contextmanager
def empty_directory(directory: Path | epath.Path, ours: re.Pattern) -> Iterator[None]:
    """Makes the directory, removes what an interrupted run left, and locks it.

    Object storage has no locks: two that write to one place there are not told apart.

    Args:
      directory: Is created with its parents.
      ours: Matches the relative paths, with "/", of files that may be removed.

    Raises:
      UserError: if anything else is there, or another process is writing.
    """
    if storage.is_remote(directory):
        _refuse_foreign(directory, storage.list_files(directory), ours)
        storage.remove_directory(directory)
        yield
        return
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            # The lock ends with the process, however that ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is writing a token store in {directory}") from None
        _remove(directory, ours)
        yield
    finally:
        os.close(descriptor)


def _remove(directory: Path, ours: re.Pattern) -> None:
    files = [path for path in directory.rglob("*") if not path.is_dir()]
    _refuse_foreign(directory, [path.relative_to(directory).as_posix() for path in files], ours)
    for path in files:
        path.unlink()


def _refuse_foreign(directory: Path | epath.Path, names: Iterable[str], ours: re.Pattern) -> None:
    for name in names:
        if not ours.fullmatch(name):
            raise UserError(
                f"{directory} holds {name}, which is no part of an unfinished token store: give "
                "an empty directory"
            )
