"""Finds parts (terms, rows, corruptions, families, tasks, heads) by their names.

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


def is_trusted(path: str) -> bool:
    """Returns whether MODULE:NAME is in this package, or was named by the user."""
    return path.startswith("bert_jax.") or path in _trusted


def check_part(name: str, builtin: Mapping[str, str], key: str) -> None:
    """Refuses a name that `load_part` would refuse, without importing anything."""
    path = builtin.get(name, name)
    if ":" not in path:
        raise UserError(
            f"{key} is {name!r}; it must be one of {', '.join(builtin)}, or MODULE:NAME of a part "
            "of your own"
        )
    if not is_trusted(path):
        raise UserError(
            f"{key} is {name!r} in a stored file, which would run code from outside bert_jax; if "
            f"you trust this code, add --part={name} to the command, or parts=[{name!r}] to "
            "bert_jax.load"
        )


def load_part(name: str, builtin: Mapping[str, str], key: str) -> Any:
    """Imports the object that a config key names.

    Args:
      name: A key of `builtin`, or "MODULE:ATTRIBUTE" for a part defined outside this package.
      builtin: Maps short names to "MODULE:ATTRIBUTE".
    """
    check_part(name, builtin, key)
    try:
        return import_name(builtin.get(name, name))
    except (ImportError, AttributeError) as error:
        raise UserError(f"{key} is {name!r}, which cannot be imported: {error}") from error


def import_name(path: str) -> Any:
    """Imports "MODULE:ATTRIBUTE", which must come from code, not from a config or a stored file."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
