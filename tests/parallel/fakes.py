"""Fake devices that suffice for meshes and shardings."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class FakeDevice:
    """A device with the attributes that JAX reads to arrange TPU devices in a mesh."""

    id: int
    coords: tuple[int, int, int]
    slice_index: int
    device_kind: str = "TPU v5 lite"
    platform: str = "tpu"
    process_index: int = 0
    core_on_chip: int = 0
    client: None = None


def slices(count: int = 1, columns: int = 4, rows: int = 2, **values) -> list[FakeDevice]:
    """Returns the devices of `count` TPU slices of columns x rows chips, slice by slice."""
    size = columns * rows
    return [
        FakeDevice(i, (i % size % columns, i % size // columns, 0), i // size, **values)
        for i in range(count * size)
    ]
