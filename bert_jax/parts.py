"""Finds the parts of a variant (terms, row builders, corruptions, families) by name."""

import importlib
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError


def load_part(name: str, builtin: Mapping[str, str], key: str) -> Any:
    """Returns the object that a config key names.

    Args:
      name: A key of `builtin`, or "MODULE:ATTRIBUTE" for a part defined outside this package.
      builtin: Maps short names to "MODULE:ATTRIBUTE".
      key: The config key or flag that holds the name, for messages.

    Raises:
      UserError: There is no such part.
    """
    path = builtin.get(name, name)
    module, separator, attribute = path.partition(":")
    if not separator:
        raise UserError(
            f"{key} is {name!r}; it must be one of {', '.join(builtin)}, or MODULE:NAME of a part "
            "of your own"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{key} is {name!r}, which cannot be imported: {error}") from error
