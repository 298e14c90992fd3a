"""Defines config keys: their types, defaults and ranges.

A section of a config is a dict from names to `Field`s and further sections. `build` makes a
ConfigDict from a section, and `check` refuses a ConfigDict that does not fit the section.
"""

import dataclasses
import difflib
import enum
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from ml_collections import ConfigDict

from bert_jax.base.errors import UserError

Section = Mapping[str, "Field | Section"]


class Owner(enum.Enum):
    """What decides the value of a key, where it is given.

    Weights and a store that the config names replace the value of a config file. A flag with
    another value is refused. A work directory, with the store in it, also refuses a file with
    another value.

    Attributes:
      WEIGHTS: The weights of `config.init_from`. Without them, as RUN.
      TOKENIZER: The tokenizer of a token store, of the initial weights or of the teacher.
      STORE: The token store.
      RUN: The work directory of a run, and of the run that it continues (`config.resume_from`).
      THIS_RUN: The work directory of a run. The key affects only its own steps.
      NONE: Nothing: the key says where and how a run is computed, stored and monitored, or when it
        ends, and may change whenever the run goes on.
    """

    WEIGHTS = "The weights of init_from decide."
    TOKENIZER = "The token store, init_from or the teacher decides."
    STORE = "The token store decides."
    RUN = ""
    THIS_RUN = "May change in a run with resume_from."
    NONE = "May change during a run."


@dataclasses.dataclass(frozen=True)
class Field:
    """One key of a config. The default gives the type; an int is also accepted for a float.

    The limits and the choices apply to each element of a tuple.

    Attributes:
      default: The value unless a config file or flag sets another.
      comment: The meaning of the key, in full sentences, with the unit.
      at_least, above, at_most, below: The limits of a number; None for no limit.
      also: A number that is allowed beyond the limits; None for none.
      choices: The only values allowed.
      owner: What decides the value.
      only_with: Another key and its values with which this key has an effect; empty if it always
        has one.
      elements: The section of each element if the value is a tuple of ConfigDicts. The default is
        then a tuple of dicts.
    """

    default: Any
    comment: str
    _: dataclasses.KW_ONLY
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    also: float | None = None
    choices: tuple[str, ...] = ()
    owner: Owner = Owner.RUN
    only_with: tuple[Any, ...] = ()
    elements: Section | None = None

    def check(self, path: str, value: Any) -> None:
        """Refuses a value of another type or out of range."""
        self.check_type(path, value)
        if self.elements is not None:
            for i, element in enumerate(value):
                check(element, self.elements, f"{path}[{i}].")
            return
        is_tuple = isinstance(value, tuple)
        for element in value if is_tuple else (value,):
            if not self._is_within(element):
                subject = "each value" if is_tuple else "it"
                raise UserError(f"{path} is {value!r}; {subject} must be {self.range}")

    def check_type(self, path: str, value: Any) -> None:
        """Refuses a value whose type differs from the default's."""
        if not _has_type(value, self.default):
            raise UserError(f"{path} is {value!r}; it must be {_type_name(self.default)}")

    def _is_within(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        return value == self.also or all(
            limit is None or compare(value, limit) for _, limit, compare in self._limits
        )

    @property
    def _limits(self) -> tuple[tuple[str, float | None, Callable[[Any, float], bool]], ...]:
        return (
            ("at least", self.at_least, operator.ge),
            ("above", self.above, operator.gt),
            ("at most", self.at_most, operator.le),
            ("below", self.below, operator.lt),
        )

    @property
    def description(self) -> str:
        """What the key means, which values it may have and when they may change, in sentences."""
        found = [self.comment]
        if self.range:
            found.append(f"Allowed: {self.range}.")
        if self.only_with:
            key, *values = self.only_with
            found.append(f"Only with {key}={' or '.join(map(str, values))}.")
        return " ".join(filter(None, [*found, self.owner.value]))

    @property
    def range(self) -> str:
        """The choices or the limits in words; empty if there are none."""
        if self.choices:
            return "one of " + ", ".join(choice or "'' (empty)" for choice in self.choices)
        limits = [f"{word} {limit}" for word, limit, _ in self._limits if limit is not None]
        return " and ".join(limits) + ("" if self.also is None else f", or {self.also}")


class _Section(ConfigDict):
    """A section of a config. A key for a tuple also takes a single text or number."""

    def __str__(self) -> str:
        """Returns YAML, without ConfigDict's tags for tuples of Python."""
        return yaml.safe_dump(to_dict(self), sort_keys=False)

    def __setitem__(self, key: str, value: Any) -> None:
        if self.is_locked:
            # The message of ConfigDict lists all keys of the section.
            _refuse_unknown({key: value}, self, "")
        current = self.get(key)
        if isinstance(current, tuple) and (
            isinstance(value, str)
            or isinstance(value, int | float)
            and all(isinstance(x, int | float) for x in current)
        ):
            value = (value,)
        elif isinstance(value, ConfigDict) and isinstance(current, _Section):
            # ConfigDict refuses to replace a value by one of another class.
            value = _Section(value)
        super().__setitem__(key, value)


def build(section: Section, values: Mapping[str, Any], prefix: str = "") -> ConfigDict:
    """Makes an unlocked ConfigDict from a section.

    Args:
      values: Values that replace defaults, nested like the section. Lists may stand for tuples,
        as in JSON.
    """
    _refuse_unknown(values, section, f"config.{prefix}")
    config = _Section()
    for key, field in section.items():
        path = f"{prefix}{key}"
        if not isinstance(field, Field):
            config[key] = build(field, values.get(key, {}), f"{path}.")
            continue
        value = values.get(key, field.default)
        if isinstance(field.default, tuple) and isinstance(value, list):
            value = tuple(value)
        field.check_type(f"config.{path}", value)
        if field.elements is not None:
            value = tuple(build(field.elements, v, f"{path}[{i}].") for i, v in enumerate(value))
        config[key] = float(value) if isinstance(field.default, float) else value
    return config


def check(config: ConfigDict, section: Section, prefix: str = "config.") -> None:
    """Refuses unknown keys, missing keys, and values out of range."""
    values, fields = dict(flatten(config)), dict(flatten(section))
    _refuse_unknown(values, fields, prefix)
    for path, field in fields.items():
        field.check(prefix + path, values[path])


def flatten(values: Mapping[str, Any] | ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value with its full path, such as "train.num_steps"."""
    for key, value in values.items():
        if isinstance(value, Mapping | ConfigDict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def to_dict(config: ConfigDict) -> dict[str, Any]:
    """Converts a config to plain dicts and lists, ready for JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, ConfigDict | Mapping):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple | list) else value

    return plain(config)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Finds the paths whose values differ between two configs, with the old and new values."""
    old, new = dict(flatten(old)), dict(flatten(new))
    return {
        key: (old.get(key), new.get(key))
        for key in sorted(old | new)
        if old.get(key) != new.get(key)
    }


def _refuse_unknown(values: Mapping[str, Any], known: Mapping[str, Any], prefix: str) -> None:
    for path in values:
        if path not in known:
            nearest = difflib.get_close_matches(path, known, n=1, cutoff=0.0)[0]
            raise UserError(f"{prefix}{path} is not a known key; did you mean {prefix}{nearest}?")


def _has_type(value: Any, default: Any) -> bool:
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(_has_type(x, _element(default)) for x in value)
    if isinstance(default, Mapping):
        return isinstance(value, Mapping | ConfigDict)
    if isinstance(default, float) and type(value) is int:
        return True
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, type(default)) and isinstance(value, bool) == isinstance(default, bool)


def _element(default: tuple) -> Any:
    """Returns an example of a tuple's elements; a string if the tuple is empty."""
    return default[0] if default else ""


def _type_name(default: Any) -> str:
    if isinstance(default, tuple):
        return f"a tuple, each value {_type_name(_element(default))}"
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "a string"}
    return names.get(type(default), "a section")
