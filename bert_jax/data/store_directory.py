"""The directory that a token store is written to: one writer, no foreign file removed."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etils import epath

from bert_jax import files
from bert_jax.errors import UserError

_SPLIT = r"(tokens-\d{5}\.bin|(sentence_starts|document_starts|shard_starts|token_counts)\.npy)"
SPLIT_FILES = re.compile(_SPLIT)
STORE_FILES = re.compile(
    rf"(train|heldout)/{_SPLIT}|metadata\.json\.partial"
    r"|tokenizer/(tokenizer\.json|vocab\.txt|sentencepiece\.model)"
)


@contextmanager
def empty_directory(directory: Path | epath.Path, ours: re.Pattern) -> Iterator[None]:
    """Creates the directory, removes what an interrupted run left there, and locks it.

    Args:
      directory: Created with its parents.
      ours: Matches the relative paths, with "/", of files that may be removed.

    Raises:
      UserError: It holds any other file, or another process is writing to it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    refusal = f"another process is writing a token store in {directory}"
    with files.lock_directory(directory, refusal):
        if files.is_remote(directory):
            found = list(files.list_files(directory))
        else:
            paths = [path for path in directory.rglob("*") if not path.is_dir()]
            found = [path.relative_to(directory).as_posix() for path in paths]
        for name in found:
            if not ours.fullmatch(name):
                raise UserError(
                    f"{directory} holds {name}, which is no part of an unfinished token store: "
                    "give an empty directory"
                )
        for name in found:
            (directory / name).unlink()
        yield
