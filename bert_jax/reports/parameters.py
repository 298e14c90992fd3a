"""Prints the sharding of every parameter, at the start of a run that shards parameters."""

import dataclasses
import math
import re
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from rich import box
from rich.table import Table

from bert_jax.base.progress import terminal
from bert_jax.parallel.sharding import mesh_axes

# The width if there is no terminal: every name fits in one line.
_FILE_WIDTH = 120
_LAYER = re.compile(r"\blayer_\d+\b")


@dataclasses.dataclass(frozen=True)
class Row:
    """Parameters with the same name, shape and sharding in all layers.

    Attributes:
      name: The path, with "layer_*" for every layer.
      shape: The shape of each parameter.
      spec: For each axis, the mesh axes that it is sharded over, joined by "+"; "" for none.
      dtype: The dtype of each parameter.
      count: The number of parameters.
      bytes_per_device: The bytes of all these parameters on one device.
    """

    name: str
    shape: tuple[int, ...]
    spec: tuple[str, ...]
    dtype: str
    count: int
    bytes_per_device: int


def parameter_rows(params: Any) -> list[Row]:
    """Returns the rows of the table, in the order of the tree.

    Args:
      params: A pytree of arrays, or of abstract arrays with shardings.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    rows: dict[tuple, Row] = {}
    for path, leaf in leaves:
        name = _LAYER.sub("layer_*", jax.tree_util.keystr(path, simple=True, separator="/"))
        key = (name, leaf.shape, divided_by(leaf.sharding, len(leaf.shape)), str(leaf.dtype))
        row = rows.get(key, Row(*key, count=0, bytes_per_device=0))
        rows[key] = dataclasses.replace(
            row, count=row.count + 1, bytes_per_device=row.bytes_per_device + bytes_per_device(leaf)
        )
    return list(rows.values())


def divided_by(sharding: NamedSharding, ndim: int) -> tuple[str, ...]:
    """Returns the mesh axes of several devices that each axis of an array is sharded over."""
    spec = [*sharding.spec, *[None] * (ndim - len(sharding.spec))]
    divides = set(mesh_axes(sharding))
    return tuple(
        "+".join(axis for axis in (axes if isinstance(axes, tuple) else (axes,)) if axis in divides)
        for axes in spec
    )


def bytes_per_device(array: Any) -> int:
    """Returns the number of bytes of an array that one device holds."""
    return math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize


def print_parameters(state: Any, mesh: Mesh, preset: str) -> None:
    """Prints `parameter_table`, unless every device has all parameters."""
    if not any(any(row.spec) for row in parameter_rows(state.params)):
        return
    console = terminal()
    if not console.is_terminal:
        console = terminal(width=_FILE_WIDTH)
    console.print(parameter_table(state, mesh, preset))


def parameter_table(state: Any, mesh: Mesh, preset: str) -> Table:
    """Returns the table of a train state's shardings, with totals; the state may be abstract."""
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    title = f"Parameters under {preset!r} on the mesh {axes}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name, justify in (
        ("parameter", "left"),
        ("", "right"),
        ("shape", "right"),
        ("divided over", "left"),
        ("bytes per device", "right"),
    ):
        # A long name may wrap; a number must not.
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name != "parameter")
    for row in parameter_rows(state.params):
        table.add_row(
            row.name,
            f"{row.count} x" if row.count > 1 else "",
            "x".join(map(str, row.shape)),
            ", ".join(axes or "-" for axes in row.spec) if any(row.spec) else "whole",
            f"{row.bytes_per_device:,}",
        )
    table.add_section()
    for name, tree in (("all parameters", state.params), ("optimizer state", state.opt_state)):
        leaves = jax.tree.leaves(tree)
        total_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        on_one_device = sum(map(bytes_per_device, leaves))
        table.add_row(f"{name}: {total_bytes:,} bytes", "", "", "", f"{on_one_device:,}")
    return table
