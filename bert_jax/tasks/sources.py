"""Finds the files of a task: a folder with the usual file names, or files named one by one."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from etils import epath

from bert_jax import files
from bert_jax.errors import UserError

SplitFiles = dict[str, Path | epath.Path]


def find_files(source: str, names: Mapping[str, Sequence[str]]) -> SplitFiles:
    """Returns the file of each split that has one.

    Args:
      source: The value of `data.input`: a folder, or "SPLIT=FILE,SPLIT=FILE".
      names: The file names that each split may have in a folder, first choice first.

    Raises:
      UserError: There is no such file, the folder has none of these names, or it has two for
        one split.
    """
    if re.match(r"\s*\w+\s*=", source):
        return _named_files(source, names)
    folder = files.open_path(source, "config.data.input")
    if not folder.exists():
        raise UserError(f"config.data.input is {source}, but there is no such folder")
    if not folder.is_dir():
        raise UserError(
            f"config.data.input is {source}, a file: name its split, as in "
            f"validation={source}, with commas between several"
        )
    found: SplitFiles = {}
    for split, choices in names.items():
        existing = [folder / name for name in choices if (folder / name).exists()]
        # The diagnostic set of GLUE may lie in several folders; those are copies.
        same = [path for path in existing[1:] if path.parent == existing[0].parent]
        if same:
            raise UserError(
                f"config.data.input is {source}, where both {existing[0].name} and "
                f"{same[0].name} may be the {split} split; name the file, as in "
                f"{split}={existing[0]}, with commas between splits"
            )
        if existing:
            found[split] = existing[0]
    if not found:
        known = ", ".join(name for choices in names.values() for name in choices)
        raise UserError(f"config.data.input is {source}, but that folder has none of {known}")
    return found


def _named_files(source: str, names: Mapping[str, Sequence[str]]) -> SplitFiles:
    found: SplitFiles = {}
    # A comma that is not followed by SPLIT= belongs to a file name.
    for item in re.split(r",(?=\s*\w+\s*=)", source):
        split, _, name = (part.strip() for part in item.partition("="))
        if split not in names:
            raise UserError(
                f"config.data.input has {item!r}, but it must be SPLIT=FILE with a split of "
                + ", ".join(names)
            )
        if split in found:
            raise UserError(f"config.data.input has two files of the split {split}: {source}")
        found[split] = files.open_path(name, "config.data.input")
        if not found[split].is_file():
            raise UserError(f"config.data.input has {item!r}, but there is no such file")
    return found


def split_names(names: Sequence[str]) -> tuple[str, ...]:
    """Splits names at commas: on the command line one text may hold several names."""
    return tuple(name.strip() for text in names for name in text.split(",") if name.strip())
