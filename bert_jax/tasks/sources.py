"""Where a task's data are: a folder with the files' usual names, named files, or TFDS."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax import files
from bert_jax.errors import UserError

TFDS_PREFIX = "tfds:"
BAD_ROW_POLICIES = ("refuse", "skip")


def find_files(source: str, names: Mapping[str, Sequence[str]]) -> dict[str, Path | epath.Path]:
    """The file of each split.

    Args:
      source: As data.input gives it: a folder, or "SPLIT=FILE,SPLIT=FILE".
      names: For each split the names that its file may have in a folder, first choice first.

    Raises:
      UserError: there is no such file, none of these names in the folder, or two of one split.
    """
    if re.match(r"\s*\w+\s*=", source):
        return _named_files(source, names)
    folder = files.open_path(source, "config.data.input")
    if not folder.exists():
        raise UserError(f"config.data.input is {source}, but there is no such folder")
    if not folder.is_dir():
        raise UserError(
            f"config.data.input is {source}, a file: say of which split, as in "
            f"validation={source}, with commas between several"
        )
    found: dict[str, Path | epath.Path] = {}
    for split, choices in names.items():
        first, *others = [folder / name for name in choices if (folder / name).exists()] or [None]
        # In another folder it is another copy of the same data (AX's).
        if same := [path for path in others if path.parent == first.parent]:
            raise UserError(
                f"config.data.input is {source}, where both {first.name} and {same[0].name} may be "
                f"the {split} split; say which is, as in {split}={first}, with commas between "
                "splits"
            )
        if first is not None:
            found[split] = first
    if not found:
        known = ", ".join(name for choices in names.values() for name in choices)
        raise UserError(f"config.data.input is {source}, but that folder has none of {known}")
    return found


def _named_files(source: str, names: Mapping[str, Sequence[str]]) -> dict[str, Path | epath.Path]:
    found: dict[str, Path | epath.Path] = {}
    # A comma that no SPLIT= follows is one of a file's name.
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
    """Names of a list in which one text may hold several, with commas between them."""
    return tuple(name.strip() for text in names for name in text.split(",") if name.strip())


def check_bad_rows(policy: str) -> None:
    """Raises UserError unless `policy` is one of BAD_ROW_POLICIES."""
    if policy not in BAD_ROW_POLICIES:
        raise UserError(
            f"config.data.bad_rows is {policy!r}, but it must be one of "
            + ", ".join(BAD_ROW_POLICIES)
        )


def read_text(path: Path | epath.Path) -> str:
    """A file's text without a byte order mark.

    Raises:
      UserError: it cannot be read, or is not UTF-8; names the line.
    """
    try:
        with files.open_input(path) as stream:
            text = stream.read().decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = e.object.count(b"\n", 0, e.start) + 1
        raise UserError(f"{path}:{line}: not valid UTF-8") from None
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or 'no such file'}") from None
    # Where nothing else ends a line, as of old.
    return text if "\n" in text else text.replace("\r", "\n")


def read_json(path: Path | epath.Path) -> Any:
    """A file of one JSON value; UserError if it is none."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as e:
        raise UserError(f"{path} is not whole JSON: {e}") from None


def is_encodable(text: str) -> bool:
    """Whether there is UTF-8 for it: JSON can spell a lone surrogate ("\\ud800")."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def tfds_builder(source: str) -> Any:
    """TensorFlow Datasets' builder of "tfds:NAME", its data on disk.

    Raises:
      UserError: it does not know the name, or cannot prepare the data.
    """
    # TensorFlow takes seconds to import: only when it is asked for.
    import tensorflow_datasets as tfds

    name = source.removeprefix(TFDS_PREFIX)
    try:
        builder = tfds.builder(name)
        builder.download_and_prepare()
    except tfds.core.DatasetNotFoundError:
        raise UserError(
            f"config.data.input: TensorFlow Datasets has no data set {name!r}"
        ) from None
    except ImportError as e:
        raise UserError(f"config.data.input: cannot prepare {name!r}: {e}: install it") from None
    # The last is what it raises for a version that it does not know.
    except (ValueError, AssertionError) as e:
        raise UserError(
            f"config.data.input: cannot load {name!r}: {str(e).splitlines()[0]}"
        ) from None
    return builder


def is_prepared(source: str) -> bool:
    """Whether the data of "tfds:NAME" are on disk."""
    import tensorflow_datasets as tfds

    try:
        return tfds.builder(source.removeprefix(TFDS_PREFIX)).is_prepared()
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError):
        return False


def check_features(builder: Any, needed: Iterable[str]) -> None:
    """Refuses a data set of another task.

    Raises:
      UserError: its examples lack one of the fields needed.
    """
    for name in needed:
        if name not in builder.info.features:
            raise UserError(
                f"config.data.input: {builder.info.full_name} has no field `{name}`; there is: "
                + ", ".join(builder.info.features)
            )


def tfds_examples(builder: Any, split: str) -> Iterator[dict[str, Any]]:
    """The examples of a split as numpy values, texts as bytes, in the order on disk."""
    yield from builder.as_dataset(split=split, shuffle_files=False).as_numpy_iterator()
