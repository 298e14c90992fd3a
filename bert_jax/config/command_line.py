"""Parses flags and config files, and reports mistakes in one sentence."""

import ast
import contextlib
import copy
import dataclasses
import difflib
import importlib.machinery
import importlib.util
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict
from ml_collections.config_flags import config_path

from bert_jax.base import parts
from bert_jax.base.errors import UserError
from bert_jax.config.data import DATA

# Flags that absl defines for every program. They are never suggested for a misspelled flag.
ABSL_FLAGS = frozenset(flags.FLAGS)
# The name of the module of a config file.
CONFIG_MODULE = "config_file"
# What other programs call a key; the first key that the config has is suggested.
_SYNONYMS = {
    ("lr", "learning_rate"): ("schedule.peak_learning_rate",),
    ("epochs", "num_epochs", "num_train_epochs"): ("train.num_epochs", "train.num_steps"),
    ("steps", "max_steps"): ("train.num_steps", "train.num_epochs"),
    ("max_length", "max_seq_length"): ("data.max_seq_length", "train.stages[0].max_seq_length"),
    ("output_dir", "output"): ("workdir",),
    ("model", "model_name", "model_name_or_path"): ("init_from",),
    ("per_device_train_batch_size",): ("train.batch_size",),
}
# What a model or its authors call a config. The names are lower-case letters and digits; a name may
# go on, as in "camembert-base".
_OWN_TEXT = "base, or continue:MODEL to go on from a trained model, with --config.data.input"
_MODELS = {
    "camembert": "roberta:camembert",
    "phobert": "roberta:phobert",
    "xlmr": "roberta:xlmr",
    "mbert": "multilingual:base",
    "bertbasemultilingual": "multilingual:base",
    "bertbase": "base",
    "bertlarge": "large",
    "ettin": "modernbert:ettin_150m",
    **dict.fromkeys(("scibert", "biobert", "clinicalbert", "legalbert", "finbert"), _OWN_TEXT),
}


class UsageError(Exception):
    """A mistake in the flags, described in one sentence; exit status 2."""


@dataclasses.dataclass(frozen=True)
class ConfigSource:
    """Where a config comes from.

    Attributes:
      name: The value of --config, or the config.json of a work directory.
      values: The config of the file, without flags.
      is_stored: Whether the file is the config.json of a work directory.
    """

    name: str
    values: ConfigDict
    flags: frozenset[str] = frozenset()
    is_stored: bool = False

    @property
    def is_workdir_alone(self) -> bool:
        """Whether --workdir alone was given: a finished run then opens only its directory."""
        return self.is_stored and not self.flags


def parse(
    argv: Sequence[str],
    values: flags.FlagValues = flags.FLAGS,
    *,
    words: bool = False,
    load_stored: Callable[[str], ConfigDict | None] = lambda directory: None,
) -> list[str]:
    """Parses flags and returns the program's name and the remaining arguments.

    The value of the flag `config`, if it is defined, becomes the config.

    Args:
      load_stored: Returns the config of a work directory, or None if it has none. If the flag
        --workdir is given without --config, this config is used.
    """
    argv, overrides = [_with_home(argument) for argument in argv], []
    if "config" in values:
        argv, overrides = _split_overrides(values.read_flags_from_files(argv))
    values.set_gnu_getopt(words)
    try:
        remaining = values(argv)
    except flags.UnrecognizedFlagError as e:
        names = [name for name in values if name not in ABSL_FLAGS]
        if "config" in values and (path := values["config"].value):
            names += [f"config.{key}" for key in _keys(load_config_file(path))]
        raise UsageError(f"unknown flag --{e.flagname}{nearest(e.flagname, names, '--')}") from e
    except flags.Error as e:
        if "must have a value other than None" in str(e):
            name = str(e).partition("=")[0].removeprefix("flag --")
            raise UsageError(f"--{name} is missing: {values[name].help.rstrip('.')}") from e
        raise UsageError(str(e).strip().splitlines()[0]) from e
    for name in values:
        if isinstance(value := values[name].value, float) and not math.isfinite(value):
            raise UsageError(f"--{name} is {value}; it must be a number")
    if len(remaining) > 1 and not words:
        raise UsageError(f"unexpected argument {remaining[1]!r}: flags are written --NAME=VALUE")
    if "config" in values:
        _load_config(values, overrides, load_stored)
    return remaining


def config_source(values: flags.FlagValues = flags.FLAGS) -> ConfigSource:
    return values["config"].source


def _with_home(argument: str) -> str:
    """Expands ~/ at the start of a path inside a flag, which shells do not expand."""
    if not argument.startswith("-"):
        return argument
    return re.sub(r"(?<=[=:,'\"])~(?=/)", lambda _: os.path.expanduser("~"), argument)


def _split_overrides(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str | bool]]]:
    """Returns the arguments but those for config keys, and the keys with their values.

    The forms are --config.KEY=TEXT, --config.KEY TEXT and --config.KEY (True), as those of absl.
    """
    others, overrides = list(argv[:1]), []
    arguments = list(argv[1:])
    while arguments:
        argument = arguments.pop(0)
        if argument == "--":
            return [*others, argument, *arguments], overrides
        if found := re.fullmatch(r"--?config\.([^=]+)=(.*)", argument, re.DOTALL):
            overrides.append(found.groups())
        elif found := re.fullmatch(r"--?config\.([^=]+)", argument):
            has_text = arguments and not arguments[0].startswith("--")
            overrides.append((found[1], arguments.pop(0) if has_text else True))
        else:
            others.append(argument)
    return others, overrides


def _load_config(
    values: flags.FlagValues,
    overrides: Sequence[tuple[str, str | bool]],
    load_stored: Callable[[str], ConfigDict | None],
) -> None:
    """Loads the file of --config, or the config of --workdir, and changes the overridden keys."""
    path, directory = values["config"].value, values["workdir"].value if "workdir" in values else ""
    # A config file may read a directory that names the parts.
    for name in values["part"].value if "part" in values else ():
        parts.trust(name)
    stored = load_stored(directory) if directory and path is None else None
    if stored:
        path, config = f"{directory}/config.json", stored
    elif path is not None:
        config = load_config_file(path)
    else:
        raise UsageError(
            "--config is missing: a config file, such as configs/tiny.py, unless --workdir names "
            "a run to continue"
        )
    keys = [key for key, _ in overrides]
    source = ConfigSource(path, copy.deepcopy(config), frozenset(keys), bool(stored))
    known = list(_keys(config))
    for key, text in overrides:
        if key not in known:
            raise UsageError(f"unknown config key {key}{nearest(key, known)}")
        current = config_path.get_value(key, config)
        if keys.count(key) > 1:
            raise UsageError(f"--config.{key} is given twice; commas separate several values")
        try:
            config_path.set_value(key, config, _parsed(text, current))
        except ValueError as e:
            raise UsageError(f"flag --config.{key}={text}: {e}") from e
    for key, other in (("data.input", "data.sources"), ("data.sources", "data.input")):
        # Both name the text: a flag for one replaces the other one of the file.
        if "data.sources" in known and key in keys and other not in keys:
            config_path.set_value(other, config, DATA[other.removeprefix("data.")].default)
    values["config"].value, values["config"].source = config, source


def _parsed(text: str | bool, current: Any) -> Any:
    """Converts the text of a flag to the type of the key's current value."""
    if isinstance(current, bool):
        if (word := str(text).lower()) not in ("true", "false", "t", "f", "1", "0"):
            raise ValueError("it must be true or false")
        return word in ("true", "t", "1")
    if isinstance(text, bool):
        raise ValueError("it needs a value")
    if isinstance(current, str):
        return text
    if isinstance(current, int | float):
        return type(current)(text)
    if not isinstance(current, tuple) or any(isinstance(item, ConfigDict) for item in current):
        raise ValueError("it has keys of its own, which flags change one by one")
    if text[:1] in ("(", "[", "'", '"'):
        # Anything else, such as "[ab]*.txt", is a text.
        with contextlib.suppress(ValueError, SyntaxError):
            items = ast.literal_eval(text)
            return tuple(items) if isinstance(items, tuple | list) else (items,)
    # "\\," is a comma inside a text.
    pieces = [piece.strip() for piece in re.split(r"(?<!\\),", text)]
    return tuple(_parsed(piece, current[0] if current else "") for piece in pieces if piece)


def load_config_file(path: str) -> ConfigDict:
    """Loads get_config() of FILE, or get_config(ARGUMENT) for FILE:ARGUMENT, locked."""
    file, *arguments = path.split(":", 1)
    known = config_files()
    # A file in the current directory with the name of a config, such as "base", may be anything.
    if file in known or not os.path.isfile(file):
        name = file.removeprefix("configs/").removesuffix(".py")
        if name not in known:
            plain = re.sub("[^a-z0-9]", "", name.rpartition("/")[2].lower())
            model = next((meant for key, meant in _MODELS.items() if plain.startswith(key)), "")
            meant = f"; did you mean {model}?" if model else nearest(name, list(known))
            raise UserError(f"there is no config file {file!r}{meant}")
        file = str(known[name])
    loader = importlib.machinery.SourceFileLoader(CONFIG_MODULE, file)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(CONFIG_MODULE, loader))
    loader.exec_module(module)
    return module.get_config(*arguments).lock()


def config_files() -> dict[str, Path]:
    """Finds the config files by name: "tiny", "finetune/glue".

    A wheel has them inside the package, a checkout beside it.
    """
    package = Path(__file__).parents[1]
    parent = package if (package / "configs").is_dir() else package.parent
    folder = parent / "configs"
    return {
        file.relative_to(folder).with_suffix("").as_posix(): file
        for file in sorted(folder.rglob("*.py"))
    }


def _keys(config: Any, prefix: str = "") -> Iterator[str]:
    """Yields the full paths of all values and sections: "train.stages[0].fraction"."""
    items: Sequence[tuple[str, Any]] = ()
    if isinstance(config, ConfigDict):
        items = [(f"{prefix}.{k}" if prefix else k, v) for k, v in config.items()]
    elif isinstance(config, tuple) and any(isinstance(item, ConfigDict) for item in config):
        items = [(f"{prefix}[{i}]", v) for i, v in enumerate(config)]
    for path, value in items:
        yield path
        yield from _keys(value, path)


def nearest(name: str, known: Sequence[str], prefix: str = "") -> str:
    """Returns "; did you mean ...?"; empty if no name is similar."""
    last = name.rpartition(".")[2]
    meant = [key for names, keys in _SYNONYMS.items() if last in names for key in keys]
    synonyms = [k for key in meant for k in (key, f"config.{key}") if k in known]
    # Also suggest the same key in another section.
    same_end = [k for k in known if k.rpartition(".")[2] == last]
    best = next(iter([*synonyms, *difflib.get_close_matches(name, known, 1), *same_end]), None)
    return f"; did you mean {prefix}{best}?" if best else ""
