"""Which files of a folder are data, and whether a split has all of its files."""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError

AnyPath = Path | epath.Path
# What `datasets` and the Hub write beside the data, and the results of `map` and its like.
_NO_DATA = re.compile(r"(dataset_infos?|dataset_dict)\.json|cache-\w+\.arrow")
STATE = "state.json"
# One of several files of a split, such as train-00000-of-00002.parquet.
_SHARD = re.compile(r"(.*[-_.])(\d+)-of-(\d+)\b[^/]*")


def data_files(paths: Iterable[AnyPath]) -> list[AnyPath]:
    """Selects the data, in order; of a folder that `datasets` saved, what its state.json names."""
    paths = sorted(paths, key=str)
    named: dict[AnyPath, set[str]] = {}
    for path in paths:
        # Another program's state.json may be data.
        with contextlib.suppress(ValueError, LookupError, TypeError):
            if path.name == STATE:
                with files.open_input(path) as stream:
                    data = json.load(stream)["_data_files"]
                named[path.parent] = {file["filename"] for file in data}
    found = (path for path in paths if path.name in named.get(path.parent, {path.name}))
    return [path for path in found if not _NO_DATA.fullmatch(path.name)]


def pattern_of(path: AnyPath) -> AnyPath:
    """Returns the pattern of all files of a split, such as train-*-of-00002*.parquet, for one."""
    match = _SHARD.fullmatch(path.name)
    is_part = match and int(match[3]) > 1
    return path.with_name(f"{match[1]}*-of-{match[3]}*{path.suffix}") if is_part else path


def check_complete(paths: Iterable[AnyPath]) -> None:
    """Refuses a folder with only some of the files of a split."""
    matches = filter(None, (_SHARD.fullmatch(str(path)) for path in paths))
    for (start, total), number in Counter(match.group(1, 3) for match in matches).items():
        if number < int(total):
            raise UserError(
                f"{start}*-of-{total} are {int(total):,} files, of which {number:,} are there; add "
                "the others, or name those that are to be read"
            )
