"""Finds the parts of a variant (terms, row builders, corruptions, families) by name.

A directory is data: opening it must not run code from outside this package, even if a file in it
names a part. A part from outside is imported only if the user named it in this process.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError

# The names of parts from outside the package that the user gave.
_trusted: set[str] = set()


def trust(value: Any) -> None:
    """Lets `load_part` import every MODULE:NAME in a value that the user gave.

    Args:
      value: Names, joined with commas, or a list, tuple or config with such texts.
    """
    if isinstance(value, str):
        _trusted.update(name.strip() for name in value.split(",") if ":" in name)
    elif isinstance(value, ConfigDict):
        trust(list(value.values()))
    elif isinstance(value, Sequence):
        for item in value:
            trust(item)


def load_part(name: str, builtin: Mapping[str, str], key: str) -> Any:
    """Imports the object that a config key names.

    Args:
      name: A key of `builtin`, or "MODULE:ATTRIBUTE" for a part defined outside this package.
      builtin: Maps short names to "MODULE:ATTRIBUTE".
    """
    path = builtin.get(name, name)
    module, separator, attribute = path.partition(":")
    if not separator:
        raise UserError(
            f"{key} is {name!r}; it must be one of {', '.join(builtin)}, or MODULE:NAME of a part "
            "of your own"
        )
    if module.partition(".")[0] != "bert_jax" and name not in _trusted:
        raise UserError(
            f"{key} is {name!r} in a stored file, which would run code from outside bert_jax; if "
            f"you trust this code, add --part={name} to the command, or parts=[{name!r}] to "
            "bert_jax.load"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{key} is {name!r}, which cannot be imported: {error}") from error
