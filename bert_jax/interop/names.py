"""The names and layouts of weights in other programs.

`transformers` stores a projection as [out, in]; Google's BERT stores it as [in, out], as
bert_jax does. Our attention kernels, [D, A, K] and [A, K, D], have a separate axis A for the
heads; both other programs merge A and K.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.interop.family import Family, Names, Tensor
from bert_jax.interop.weights import Shapes, Weights, head_of

Shape = tuple[int, ...]


# The layouts of weights in other programs: a function from our shape to the other program's before
# any transposition, and the programs that store the transpose.
LAYOUTS: dict[str, tuple[Callable[[Shape], Shape], tuple[str, ...]]] = {
    "table": (lambda s: s, ()),
    "vector": (lambda s: s, ()),
    "matrix": (lambda s: s, ("huggingface",)),
    # The only matrix that Google's BERT stores as [out, in] is cls/seq_relationship.
    "classes": (lambda s: s, ("huggingface", "google")),
    "heads_in": (lambda s: (s[0], s[1] * s[2]), ("huggingface",)),
    "heads_bias": (lambda s: (s[0] * s[1],), ()),
    "heads_out": (lambda s: (s[0] * s[1], s[2]), ("huggingface",)),
}
# What stands for a weight and its bias in `Names.rows`: the layout of each, and the ends of our
# name, Hugging Face's and Google's.
SHORTHANDS = {
    "dense": (("matrix", "/kernel", ".weight", "/kernel"), ("vector", "/bias", ".bias", "/bias")),
    "output": (
        ("classes", "/kernel", ".weight", "_weights"),
        ("vector", "/bias", ".bias", "_bias"),
    ),
    "norm": (("vector", "/scale", ".weight", "/gamma"), ("vector", "/bias", ".bias", "/beta")),
    "heads": (
        ("heads_in", "_kernel", ".weight", "/kernel"),
        ("heads_bias", "_bias", ".bias", "/bias"),
    ),
    "heads_output": (
        ("heads_out", "_kernel", ".weight", "/kernel"),
        ("vector", "_bias", ".bias", "/bias"),
    ),
}
# "matrix", "table+2" or "heads@0/3"; see `Names.rows`.
_KIND = re.compile(r"(\w+)(?:\+(\d+))?(?:@(\d+)/(\d+))?").fullmatch


class ForeignTensor(NamedTuple):
    """The tensor of a weight in another program.

    Its first `unused_rows` rows are not used. A tensor may hold several weights of one shape, one
    after another on its first axis; ours is number `part` of `parts`.
    """

    name: str
    merged: Callable[[Shape], Shape]
    transposed: bool
    unused_rows: int = 0
    part: int = 0
    parts: int = 1

    def shape(self, ours: Shape) -> Shape:
        """Converts the shape of our weight to the tensor's."""
        rows, *columns = self.merged(ours)
        shape = (self.unused_rows + rows, *columns)
        first, *rest = shape[::-1] if self.transposed else shape
        return self.parts * first, *rest

    def export(self, value: np.ndarray) -> np.ndarray:
        """Converts our value to the tensor's layout, or its part of it; a view if possible."""
        value = np.reshape(value, self.merged(value.shape))
        if self.unused_rows:
            value = np.pad(value, [(self.unused_rows, 0)] + [(0, 0)] * (value.ndim - 1))
        return value.T if self.transposed else value

    def restore(self, value: np.ndarray, ours: Shape) -> np.ndarray:
        """Inverts `export`, bit for bit, for the whole tensor."""
        if self.parts > 1:
            value = np.split(value, self.parts)[self.part]
        value = value.T if self.transposed else value
        return np.reshape(value[self.unused_rows :], ours)


def foreign_names(
    tables: Iterable[Names], program: str, num_blocks: int
) -> dict[str, ForeignTensor]:
    """Maps our flat names to the tensors of "huggingface" or "google".

    Weights that the program does not have are absent. `num_blocks` is the number of blocks with
    parameters of their own, `BertConfig.max_blocks`.
    """
    names = {}
    column = {"huggingface": 1, "google": 2}[program]
    for table in tables:
        prefix = getattr(table, program)
        if prefix is None:
            continue
        for line in filter(None, table.rows.splitlines()):
            kind, *columns = line.split()
            kind, unused_rows, part, parts = _KIND(kind).groups()
            for layout, *ends in SHORTHANDS.get(kind, ((kind, "", "", ""),)):
                if ends[1] == ".bias" and columns[0].split("/")[0] in table.biasless:
                    continue
                merged, transposed = LAYOUTS[layout]
                ours = table.ours + columns[0] + ends[0]
                theirs = prefix + columns[column] + ends[column]
                for i in range(num_blocks) if "{}" in ours else (0,):
                    names[ours.format(i)] = ForeignTensor(
                        theirs.format(i),
                        merged,
                        program in transposed,
                        unused_rows=int(unused_rows or 0),
                        part=int(part or 0),
                        parts=int(parts or 1),
                    )
    return names


def names_in_file(
    family: Family, tensors: Collection[str], num_blocks: int
) -> dict[str, ForeignTensor]:
    """Maps our flat names to the tensors of a file of `transformers`, whichever names it has."""
    others = foreign_names(family.other_names, "huggingface", num_blocks)
    found = {ours: theirs for ours, theirs in others.items() if theirs.name in tensors}
    return foreign_names(family.names, "huggingface", num_blocks) | found


def export_weights(
    weights: Weights, names: Mapping[str, ForeignTensor]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields another program's tensors, and empties `weights` on the way.

    Weights are converted one by one, to avoid two copies of all of them.
    """
    found: dict[str, dict[int, np.ndarray]] = {}
    for name in list(weights):
        theirs = names[name]
        parts = found.setdefault(theirs.name, {})
        parts[theirs.part] = theirs.export(weights.pop(name))
        if len(parts) == theirs.parts:
            parts = [parts[i] for i in range(theirs.parts)]
            del found[theirs.name]
            yield theirs.name, parts[0] if len(parts) == 1 else np.concatenate(parts)


def collect_weights(
    tensors: Mapping[str, Tensor],
    names: Mapping[str, ForeignTensor],
    shapes: Shapes,
    family: Family,
    source: Path,
) -> tuple[Weights, list[str]]:
    """Reads the weights of a model from another program's file, but for heads that it lacks.

    Returns them flat, in float32, and a list with a warning if tensors are left out.
    """
    present = {head_of(n) for n in shapes if n in names and names[n].name in tensors} | {""}
    wanted = {n: names[n] for n in shapes if n in names and head_of(n) in present}
    read = {theirs.name for theirs in wanted.values()}
    others = [name for name in tensors if name not in read]
    # Heads may be left out; weights of the encoder are part of what it computes.
    heads = {theirs.name for ours, theirs in names.items() if head_of(ours)}
    problems = {
        "missing": [theirs.name for theirs in wanted.values() if theirs.name not in tensors],
        "unknown": [n for n in others if n.startswith(family.encoder_prefixes) and n not in heads],
        "of another shape": [
            f"{theirs.name} is {list(tensors[theirs.name].shape)}, not "
            f"{list(theirs.shape(shapes[ours]))}"
            for ours, theirs in wanted.items()
            if theirs.name in tensors and tensors[theirs.name].shape != theirs.shape(shapes[ours])
        ],
    }
    if any(problems.values()):
        listed = [f"{kind}: {_first(found)}" for kind, found in problems.items() if found]
        raise UserError(f"{source} does not match its config: {'; '.join(listed)}")
    weights = {}
    for ours, theirs in wanted.items():
        value = tensors[theirs.name].read()
        # A conversion to float32 must not change any value.
        if value.dtype not in (np.float32, np.float16, ml_dtypes.bfloat16):
            raise UserError(
                f"{source}: {theirs.name} is {value.dtype}; weights must be float32, bfloat16 or "
                "float16"
            )
        weights[ours] = theirs.restore(value.astype(np.float32, copy=False), shapes[ours])
    left_out = f"{source}: {_first(others)} are not used and are left out"
    return weights, [left_out] if others else []


def _first(names: Sequence[str]) -> str:
    """Lists three names of many."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
