"""Paths that this program reads and writes with the plain file system."""

import os
from pathlib import Path

from bert_jax.errors import UserError


def local_path(path: str | os.PathLike, what: str, remedy: str = "give a local directory") -> Path:
    """Returns the path, unless it is of another storage: pathlib would turn that local.

    Args:
      path: As the user gave it.
      what: What it is the path of, for the message.

    Raises:
      UserError: for gs://bucket/name and the like.
    """
    path = os.fspath(path)
    scheme, separator, _ = path.partition("://")
    if separator:
        raise UserError(f"{scheme}:// paths are not supported yet for {what}: {path}; {remedy}")
    return Path(path)
