"""The exception for mistakes that the user can correct, and text that is safe to print."""

import contextlib
import os
import re
from collections.abc import Iterator


class UserError(Exception):
    """A problem that the user can fix (config, data, disk), described in one sentence.

    The message names the key, file or line and the correction. The command line prints it without
    a stack trace and exits with status 1.
    """


# All but the tab and the end of a line; then Unicode's Bidi_Control, which reorders what follows.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Escapes control characters, which a terminal obeys; files and their names may have them."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@contextlib.contextmanager
def with_filename(path: str | os.PathLike, partial: str | os.PathLike = "") -> Iterator[None]:
    """Adds the path to an OSError that lacks it, such as a failed write on a full disk.

    Args:
      path: The name that messages show.
      partial: The name of the file while it is being written. It is replaced by `path` in errors.
    """
    try:
        yield
    except OSError as e:
        if e.filename is None or str(e.filename) == str(partial):
            e.filename = str(path)
        raise
