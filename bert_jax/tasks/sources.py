"""Finds the data of a task: a folder, files named one by one, or TensorFlow Datasets."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.text import tfds


class TfdsSplit(NamedTuple):
    """A split in TensorFlow Datasets."""

    builder: Any
    name: str

    def __str__(self) -> str:
        return f"{self.builder.info.full_name} {self.name}"

    def examples(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the place of each example, NAME SPLIT:NUMBER, and its NumPy features."""
        examples = tfds.open_split(self.builder, self.name).as_numpy_iterator()
        yield from ((f"{self}:{number}", example) for number, example in enumerate(examples, 1))


Source = Path | epath.Path | TfdsSplit


def open_splits(
    source: str, names: Mapping[str, Sequence[str]], *, in_tfds: bool = True
) -> dict[str, Source]:
    """Returns the source of each split, in the order of `names`.

    Without a validation split, its source is that of the training split, which `Task` then divides.

    Args:
      source: The value of `data.input`: a folder, "SPLIT=FILE,SPLIT=FILE", "tfds:NAME", or the
        file of the training split.
      names: The file names that each split may have in a folder.
      in_tfds: Whether the task can read data sets of TensorFlow Datasets.

    Raises:
      UserError: There is no such file or data set, a split has two files, or there is no
        training split.
    """
    if not source.startswith(tfds.TFDS_PREFIX):
        is_named = re.match(r"\s*\w+\s*=", source)
        found = _named_files(source, names) if is_named else _folder_files(source, names)
    elif in_tfds:
        builder = tfds.open_downloaded(source)
        splits = builder.info.splits
        found = {split: TfdsSplit(builder, split) for split in names if split in splits}
        if "dev" in splits and "validation" in names:
            found.setdefault("validation", TfdsSplit(builder, "dev"))
    else:
        raise UserError(
            f"config.data.input is {source}, but this task reads files: give a folder, or "
            "train=FILE,validation=FILE"
        )
    if "train" not in found:
        raise UserError(
            f"config.data.input is {source}, which has no train split ({', '.join(names['train'])})"
        )
    found.setdefault(
        next(split for split in names if split.startswith("validation")), found["train"]
    )
    return {split: found[split] for split in names if split in found}


def _folder_files(source: str, names: Mapping[str, Sequence[str]]) -> dict[str, Source]:
    folder = files.checked_path(source, "config.data.input")
    if folder.is_file():
        return {"train": folder}
    if not folder.is_dir():
        raise UserError(
            f"config.data.input is {source}, but there is no such folder or file; files are named "
            "as in train=FILE,validation=FILE"
        )
    found: dict[str, Source] = {}
    for split, choices in names.items():
        existing = [folder / name for name in choices if (folder / name).exists()]
        # The diagnostic set of GLUE may lie in several folders; those are copies.
        if len(existing) > 1 and existing[0].parent == existing[1].parent:
            raise UserError(
                f"config.data.input is {source}, in which both {existing[0].name} and "
                f"{existing[1].name} may be the {split} split; name the files, as in "
                f"{split}={existing[0]}, with commas between splits"
            )
        if existing:
            found[split] = existing[0]
    return found


def _named_files(source: str, names: Mapping[str, Sequence[str]]) -> dict[str, Source]:
    found: dict[str, Source] = {}
    # A comma that is not followed by SPLIT= belongs to a file name.
    for item in re.split(r",(?=\s*\w+\s*=)", source):
        split, _, name = (part.strip() for part in item.partition("="))
        if split not in names or split in found:
            raise UserError(
                f"config.data.input has {item!r}, but each part must be SPLIT=FILE with a "
                f"different split out of {', '.join(names)}"
            )
        found[split] = files.checked_path(name, "config.data.input")
        if not found[split].is_file():
            raise UserError(f"config.data.input has {item!r}, but there is no such file")
    return found
