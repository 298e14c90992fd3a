"""Maps the logical axis names of the models to mesh axes, with a table per preset."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.base.errors import UserError
from bert_jax.parallel.chips import chip_of
from bert_jax.parallel.mesh import BATCH_AXES

Rules = tuple[tuple[str, str | tuple[str, ...]], ...]

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
    "zero1": _BATCH + _FSDP,
    "tp": _BATCH + _TENSOR,
    "fsdp_tp": _BATCH + _FSDP + _TENSOR,
}
# On these chips, zero1 divides matrices by rows. The gathered parts then lie one after another and
# need not be laid out in another order. By the estimates in docs/hardware.md, products with such
# matrices take longer on v5p.
_BY_ROWS = ("v6e",)
# A TPU stores bfloat16 matrices in tiles of this many rows.
_TILE_ROWS = 16
# `auto` is zero1 on these chips, whose SparseCores run collectives, if the copies that it gathers
# take at most this part of their memory. By the estimates, v5e hides the gathers of fsdp better.
_GATHERS_ONCE = ("v5p", "v6e")
_MOST_COPIED = 1 / 8


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the arrays of a model are laid out on a mesh.

    Attributes:
      reason: Why `auto` chose this preset; empty if the config names it.
    """

    mesh: Mesh
    preset: str
    reason: str = ""

    @classmethod
    def create(cls, mesh: Mesh, preset: str) -> Self:
        """Builds the layout of `config.sharding`; for `auto`, see also `chosen_for`."""
        reason = ""
        if preset == "auto":
            preset = "fsdp" if mesh.shape["fsdp"] > 1 else "dp"
            reason = f"the mesh has fsdp {mesh.shape['fsdp']}"
        layout = cls(mesh, preset, reason)
        used = {name for _, axes in layout.rules for name in _names(axes)}
        needed = {axis for name, axis in layout.rules if name != "batch"}
        for axis, size in mesh.shape.items():
            if axis in needed and size == 1 and mesh.devices.size > 1:
                raise UserError(
                    f"config.sharding is {preset!r} but config.mesh.{axis} is 1; give the axis "
                    f"devices, for example --config.mesh.{axis}=-1 --config.mesh.data=1"
                )
            if axis not in used and size > 1:
                raise UserError(
                    f"config.mesh.{axis} is {size}, but config.sharding {preset!r} shards nothing "
                    f"over {axis!r}: the devices along it would do the same work; give them to "
                    f"another axis, for example --config.mesh.{axis}=1 --config.mesh.data=-1"
                )
        return layout

    def chosen_for(self, copied_bytes: int) -> Self:
        """Returns the layout with what `auto` chooses between fsdp and zero1.

        Args:
          copied_bytes: The size of the copies of parameters that zero1 gathers on each device.
        """
        if not self.reason or self.preset != "fsdp":
            return self
        chip = chip_of(self.mesh.devices.flat[0])
        if chip is None or chip.name not in _GATHERS_ONCE:
            return dataclasses.replace(self, reason=f"zero1 is for {' and '.join(_GATHERS_ONCE)}")
        copied, memory = copied_bytes / 2**30, chip.hbm_limit_bytes / 2**30
        fits = copied <= _MOST_COPIED * memory
        relation = "at most" if fits else "more than"
        taken = f"copies of all matrices take {copied:.2f} of {memory:.2f} GiB"
        preset = "zero1" if fits else "fsdp"
        return dataclasses.replace(self, preset=preset, reason=f"{taken}, {relation} an eighth")

    @property
    def description(self) -> str:
        """The preset, and why `auto` chose it."""
        return f"{self.preset} (auto: {self.reason})" if self.reason else self.preset

    @property
    def rules(self) -> Rules:
        """Pairs of a logical name and mesh axes."""
        return PRESETS[self.preset]

    def params(self, boxed: Any) -> Any:
        """Returns the shardings of abstract parameters in flax's boxes of logical names."""
        shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), self.mesh, self.rules)
        chip = chip_of(self.mesh.devices.flat[0])
        if self.preset == "zero1" and chip and chip.name in _BY_ROWS:
            shardings = jax.tree.map(self._by_rows, nn.unbox(boxed), shardings)
        # Fails for an axis whose size is not a multiple of its devices.
        jax.tree.map(lambda leaf, x: x.shard_shape(leaf.shape), nn.unbox(boxed), shardings)
        return shardings

    def _by_rows(self, leaf: Any, sharding: NamedSharding) -> NamedSharding:
        """Returns a sharding that divides the first axis instead, if each part has whole tiles."""
        whole_tiles = leaf.shape[0] % (_TILE_ROWS * self.mesh.shape["fsdp"]) == 0
        if sharding.is_fully_replicated or not whole_tiles:
            return sharding
        return NamedSharding(self.mesh, PartitionSpec("fsdp"))

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


def _names(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else axes or ()
