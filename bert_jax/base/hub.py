"""Opens the file system of the Hugging Face Hub, whose data sets are only read."""

import functools
import os
from typing import Any

from etils import epath

from bert_jax.base.errors import UserError

# A file is hf://datasets/OWNER/NAME/FILE.
SCHEME = "hf://"


def is_on_hub(path: epath.PathLike) -> bool:
    return os.fspath(path).startswith(SCHEME)


@functools.cache
def filesystem() -> Any:
    """Returns the fsspec file system of the Hub."""
    try:
        from huggingface_hub import HfFileSystem
    except ImportError:
        raise UserError(
            "the package for hf:// paths is missing: pip install -e '.[hub]' (huggingface_hub)"
        ) from None
    return HfFileSystem()
