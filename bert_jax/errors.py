"""The one exception that means: the user can mend this."""

import contextlib
import os
from collections.abc import Iterator


class UserError(Exception):
    """A mistake of the user's (config, data, disk), told in one sentence.

    The message names the key, file or line and what would be right. The
    command line prints it without a stack trace and exits with status 1.
    """


@contextlib.contextmanager
def naming(path: str | os.PathLike, partial: str | os.PathLike = "") -> Iterator[None]:
    """Adds the path to an OSError that lacks it (a failed write: disk full).

    Args:
      path: What the user knows of.
      partial: What it is called while it is written: told as `path` too.
    """
    try:
        yield
    except OSError as e:
        if e.filename is None or str(e.filename) == str(partial):
            e.filename = str(path)
        raise
