"""The directory that a token store is written to: one writer, nothing foreign removed."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bert_jax.errors import UserError

_SPLIT = r"(tokens-\d{5}\.bin|(sentence_starts|document_starts|shard_starts|token_counts)\.npy)"
SPLIT_FILES = re.compile(_SPLIT)
STORE_FILES = re.compile(
    rf"(train|heldout)/{_SPLIT}|metadata\.json\.unfinished"
    r"|tokenizer/(tokenizer\.json|vocab\.txt|sentencepiece\.model)"
)


@contextmanager
def empty_directory(directory: Path, ours: re.Pattern) -> Iterator[None]:
    """Makes the directory, removes what an interrupted run left, and locks it.

    Args:
      directory: Is created with its parents.
      ours: Matches the relative paths, with "/", of files that may be removed.

    Raises:
      UserError: if anything else is there, or another process is writing.
    """
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
    for path in files:
        if not ours.fullmatch(path.relative_to(directory).as_posix()):
            raise UserError(
                f"{directory} holds {path.relative_to(directory)}, which is no part of an "
                "unfinished token store: give an empty directory"
            )
    for path in files:
        path.unlink()
