"""Maps the logical axis names of the models to mesh axes, with a table per preset."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.base.errors import UserError
from bert_jax.parallel.mesh import BATCH_AXES

Rules = tuple[tuple[str, str | tuple[str, ...] | None], ...]

# The models' names for the axes of their parameters, and for the axes of activations that a mesh
# shards.
PARAMETER_AXES = (
    "vocab",
    "embed",
    "position",
    "segment",
    "heads",
    "depth",
    "mlp",
    "norm",
    "pooled",
    "classes",
)
ACTIVATION_AXES = ("batch", "activation_heads", "activation_mlp", "activation_vocab")

# Axes that a table leaves out are replicated on all devices. Activations have their own names: a
# rule that shards a parameter over `fsdp` must not apply to the batch.
_BATCH: Rules = (("batch", BATCH_AXES),)
_FSDP: Rules = (("embed", "fsdp"),)
_TENSOR: Rules = (
    ("vocab", "model"),
    ("heads", "model"),
    ("mlp", "model"),
    ("activation_vocab", "model"),
    ("activation_heads", "model"),
    ("activation_mlp", "model"),
)
PRESETS: dict[str, Rules] = {
    "dp": _BATCH,
    "fsdp": _BATCH + _FSDP,
    "tp": _BATCH + _TENSOR,
    "fsdp_tp": _BATCH + _FSDP + _TENSOR,
}


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the arrays of a model are laid out on a mesh.

    Attributes:
      mesh: The devices.
      preset: A key of `PRESETS`.
      rules: Pairs of a logical name and mesh axes; the first match wins.
      max_replicated_fraction: The largest fraction of the parameters' bytes, from 0 to 1, that may
        be left replicated along an axis that the preset shards parameters over.
    """

    mesh: Mesh
    preset: str
    rules: Rules
    max_replicated_fraction: float

    @classmethod
    def create(
        cls,
        mesh: Mesh,
        preset: str,
        prepended: Sequence[str] = (),
        max_replicated_fraction: float = 1.0,
    ) -> Self:
        """Builds the layout of a preset, with the user's own rules first.

        Args:
          preset: `config.sharding`.
          prepended: Rules "NAME=AXIS", or "NAME=" for a replicated axis.

        Raises:
          UserError: A rule names an unknown axis, or the mesh has a single device along an axis
            that shards something, or several devices along an axis that shards nothing.
        """
        if preset == "auto":
            preset = "fsdp" if mesh.shape["fsdp"] > 1 else "dp"
        own = tuple(_parse_rule(rule, tuple(mesh.shape)) for rule in prepended if rule)
        layout = cls(mesh, preset, own + PRESETS[preset], max_replicated_fraction)
        needed = {axis: f"config.sharding is {preset!r}" for axis in layout.preset_axes}
        needed |= {axis: f"config.sharding_rules has {name}={axis}" for name, axis in own if axis}
        for axis, reason in needed.items():
            if mesh.devices.size > 1 and mesh.shape[axis] == 1:
                raise UserError(
                    f"{reason} but config.mesh.{axis} is 1; give the axis devices, for example "
                    f"--config.mesh.{axis}=-1 --config.mesh.data=1"
                )
        used = {name for _, axes in layout.rules for name in _names(axes)}
        for axis, size in mesh.shape.items():
            if size > 1 and axis not in used:
                raise UserError(
                    f"config.mesh.{axis} is {size}, but config.sharding {preset!r} shards nothing "
                    f"over {axis!r}: the devices along it would do the same work; give them to "
                    f"another axis, for example --config.mesh.{axis}=1 --config.mesh.data=-1"
                )
        return layout

    @property
    def preset_axes(self) -> tuple[str, ...]:
        """The mesh axes that the preset shards parameters over."""
        axes = {axis for name, axis in PRESETS[self.preset] if name in PARAMETER_AXES}
        return tuple(sorted(axes))

    def params(self, boxed: Any) -> Any:
        """Returns the shardings of the parameters.

        Args:
          boxed: Abstract arrays in flax's boxes of logical names.

        Returns:
          A tree of NamedShardings, without boxes.

        Raises:
          UserError: The size of an axis is not a multiple of its devices, or too many of
            the parameters' bytes are left replicated.
        """
        shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), self.mesh, self.rules)
        abstract = nn.unbox(boxed)
        jax.tree_util.tree_map_with_path(
            lambda path, leaf, sharding: _check_shape(path, leaf.shape, sharding),
            abstract,
            shardings,
        )
        for axis in self.preset_axes:
            self._check_replicated(axis, abstract, shardings)
        return shardings

    @contextlib.contextmanager
    def in_scope(self) -> Iterator[None]:
        """Makes functions that are traced in this context, or decorated by it, use the layout."""
        mesh = jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh)
        with mesh, nn.logical_axis_rules(self.rules):
            yield

    @property
    def batch(self) -> NamedSharding:
        """The sharding of a batch: rows are sharded over the data axes."""
        return NamedSharding(self.mesh, PartitionSpec(BATCH_AXES))

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of an array that is replicated on all devices."""
        return NamedSharding(self.mesh, PartitionSpec())

    def put_batch(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Makes global arrays from the rows of each host."""
        return {
            name: jax.make_array_from_process_local_data(self.batch, rows)
            for name, rows in batch.items()
        }

    def _check_replicated(self, axis: str, abstract: Any, shardings: Any) -> None:
        """Refuses a layout that leaves too many parameters replicated along an axis."""
        if self.mesh.shape[axis] == 1:
            return
        leaves, _ = jax.tree_util.tree_flatten_with_path(abstract)
        sizes = [(leaf.size * leaf.dtype.itemsize, _name(path)) for path, leaf in leaves]
        replicated = [
            size
            for size, sharding in zip(sizes, jax.tree.leaves(shardings), strict=True)
            if axis not in mesh_axes(sharding)
        ]
        fraction = sum(size for size, _ in replicated) / sum(size for size, _ in sizes)
        if fraction > self.max_replicated_fraction:
            largest, name = max(replicated)
            raise UserError(
                f"config.sharding is {self.preset!r}, but {fraction:.1%} of the parameters' bytes "
                f"are not sharded over config.mesh.{axis} (the largest: {name}, {largest:,} "
                "bytes), more than config.max_replicated_fraction, "
                f"{self.max_replicated_fraction:g}: raise that limit, or change "
                "config.sharding_rules"
            )


def mesh_axes(sharding: NamedSharding) -> tuple[str, ...]:
    """Returns the mesh axes of more than one device that an array is sharded over."""
    names = [name for axes in sharding.spec for name in _names(axes)]
    return tuple(name for name in names if sharding.mesh.shape[name] > 1)


def _names(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else axes or ()


def _parse_rule(rule: str, axes: tuple[str, ...]) -> tuple[str, str | None]:
    name, equals, axis = (part.strip() for part in rule.partition("="))
    names = PARAMETER_AXES + ACTIVATION_AXES
    if not equals:
        raise UserError(
            f"config.sharding_rules has {rule!r}; a rule is NAME=AXIS, such as 'mlp=fsdp', or "
            "NAME= for a replicated axis"
        )
    for value, known, what in ((name, names, "logical axis"), (axis or axes[0], axes, "mesh axis")):
        if value not in known:
            raise UserError(
                f"config.sharding_rules has {rule!r}, but {value!r} is not a {what}; known: "
                f"{', '.join(known)}"
            )
    return name, axis or None


def _check_shape(path: tuple, shape: tuple[int, ...], sharding: NamedSharding) -> None:
    """Refuses an axis whose size is not a multiple of its devices."""
    for size, axes in zip(shape, sharding.spec, strict=False):
        parts = math.prod(sharding.mesh.shape[axis] for axis in _names(axes))
        if size % parts:
            raise UserError(
                f"{_name(path)} of shape {shape} cannot be split evenly over the {parts} devices "
                f"of config.mesh.{_names(axes)[0]}; make {size} a multiple of {parts} or use fewer "
                "devices"
            )


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
