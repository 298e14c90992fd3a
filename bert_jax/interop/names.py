"""The names and layouts of weights in other programs.

`transformers` stores a projection as [out, in]; Google's BERT stores it as [in, out], as
bert_jax does. Our attention kernels keep the heads as an axis of their own, [D, A, K] and
[A, K, D], which both other programs merge.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.family import Family, Names
from bert_jax.interop.weights import head_of

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """How a weight is stored elsewhere.

    Attributes:
      merged: Maps our shape to the shape elsewhere, before any transposition.
      transposed: The programs that store the transpose.
    """

    merged: Callable[[Shape], Shape]
    transposed: tuple[str, ...] = ()


LAYOUTS = {
    "table": Layout(lambda s: s),
    "vector": Layout(lambda s: s),
    "matrix": Layout(lambda s: s, ("huggingface",)),
    # The only matrix that Google's BERT stores as [out, in] is cls/seq_relationship.
    "classes": Layout(lambda s: s, ("huggingface", "google")),
    "heads_in": Layout(lambda s: (s[0], s[1] * s[2]), ("huggingface",)),
    "heads_bias": Layout(lambda s: (s[0] * s[1],)),
    "heads_out": Layout(lambda s: (s[0] * s[1], s[2]), ("huggingface",)),
}


class ForeignTensor(NamedTuple):
    """The tensor of a weight in another program."""

    name: str
    merged: Callable[[Shape], Shape]
    transposed: bool

    def shape(self, ours: Shape) -> Shape:
        """Returns the tensor's shape, given the shape of our weight."""
        shape = self.merged(ours)
        return shape[::-1] if self.transposed else shape

    def export(self, value: np.ndarray) -> np.ndarray:
        """Converts our value to the tensor's layout; the result is a view if possible."""
        value = np.reshape(value, self.merged(value.shape))
        return value.T if self.transposed else value

    def restore(self, value: np.ndarray, ours: Shape) -> np.ndarray:
        """Inverts `export`, bit for bit."""
        return np.reshape(value.T if self.transposed else value, ours)


def foreign_names(
    tables: Iterable[Names], program: str, num_hidden_layers: int
) -> dict[str, ForeignTensor]:
    """Maps our flat names to a program's tensors; weights without a tensor are absent.

    Args:
      tables: The tables of a family.
      program: "huggingface" or "google".
      num_hidden_layers: Layers of the model.
    """
    names = {}
    for table in tables:
        layers = range(num_hidden_layers) if "{}" in table.ours else (0,)
        for line in table.rows.strip().splitlines():
            kind, ours, huggingface, google = line.split()
            theirs = {"huggingface": huggingface, "google": google}[program]
            if theirs == "-":
                continue
            layout = LAYOUTS[kind]
            for i in layers:
                names[table.ours.format(i) + ours] = ForeignTensor(
                    getattr(table, program).format(i) + theirs,
                    layout.merged,
                    program in layout.transposed,
                )
    return names


def match(
    found: Mapping[str, Shape],
    names: Mapping[str, ForeignTensor],
    shapes: Mapping[str, Shape],
    family: Family,
    source: str,
) -> tuple[list[str], list[str]]:
    """Compares the tensors of a file with those of the model that its config describes.

    Args:
      found: Names and shapes of the file's tensors.
      names: What each of our weights is called there.
      shapes: The shapes of the model's weights.
      family: The model's family.
      source: The file, for messages.

    Returns:
      Our names of the weights in the file (a head may be missing as a whole), and the file's
      tensors that do not belong to the model.

    Raises:
      UserError: Tensors are missing, have another shape, or are unknown within the encoder.
        The message names all of them.
    """
    present = {head_of(name) for name in shapes if name in names and names[name].name in found}
    wanted = [n for n in shapes if n in names and (head_of(n) in present or not head_of(n))]
    missing = [names[name].name for name in wanted if names[name].name not in found]
    misshapen = [
        f"{theirs.name} is {list(found[theirs.name])}, not {list(theirs.shape(shapes[name]))}"
        for name, theirs in ((name, names[name]) for name in wanted)
        if theirs.name in found and tuple(found[theirs.name]) != theirs.shape(shapes[name])
    ]
    read = {names[ours].name for ours in wanted}
    others = [name for name in found if name not in read]
    known = {theirs.name for theirs in names.values()}
    unknown = [n for n in others if n.startswith(family.encoder_prefixes) and n not in known]
    problems = []
    if missing:
        problems.append(f"missing: {', '.join(missing)}")
    if unknown:
        problems.append(f"unknown: {', '.join(unknown)}")
    if misshapen:
        problems.append(f"of another shape: {', '.join(misshapen)}")
    if problems:
        raise UserError(f"{source} is not the model of its config: {'; '.join(problems)}")
    return wanted, others
