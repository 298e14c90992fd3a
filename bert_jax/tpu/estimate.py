"""The time of a compiled TPU step, estimated: nothing here has been measured.

Three parts, each told apart:

- what the compiler's cycle counts add up to;
- Pallas kernels, which have no cycles: what their authors say that one call computes and
  moves, at the chip's peaks, the times added and not overlapped. Vector arithmetic that is
  not in `pl.CostEstimate` is not in it;
- collectives, which have no cycles either: their bytes over the links that they can use. One
  among all chips of a slice uses all links, any other those of one axis of the torus. Those
  that the program starts and waits for later run beside what is scheduled in between, one
  at a time; of the others the step waits for each.

Not in it: the latency of a collective, of which a small one consists; the network between
slices; the host, input and checkpoints.
"""

import dataclasses

from bert_jax.tpu.hlo import Collective, Kernel, Operation
from bert_jax.tpu.topologies import Topology

# Elements that a core's vector unit handles in a cycle: 8 sublanes of 128 lanes.
_VECTOR_ELEMENTS = 1024
# v4 and v5p: two cores are one device.
_CORES = {"v4": 2, "v5p": 2}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Seconds of one step; see the module.

    Attributes:
      compute_seconds: The compiler's cycles.
      kernel_seconds: Pallas kernels.
      collective_seconds: Of all collectives, hidden or not.
      exposed_collective_seconds: What of them the step waits for.
      kernels_without_cost: Calls of kernels, in a step, whose cost nobody told: they
        count nothing.
    """

    compute_seconds: float
    kernel_seconds: float
    collective_seconds: float
    exposed_collective_seconds: float
    kernels_without_cost: int

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.kernel_seconds + self.exposed_collective_seconds


def estimate_step(operations: list[Operation], topology: Topology) -> Estimate:
    """Follows the schedule of a program's operations, in order."""
    chip = topology.chip
    compute = kernels = collectives = exposed = 0.0
    without_cost = 0
    # Ends of the collectives under way; the links work on one after another.
    ends: dict[str, float] = {}
    links_free_at = now = 0.0
    for operation in operations:
        seconds = operation.total_cycles / chip.clock_hz
        compute += seconds
        if operation.kernel is not None:
            if operation.kernel == Kernel():
                without_cost += operation.executions
            told = operation.executions * kernel_seconds(operation.kernel, topology)
            kernels += told
            seconds += told
        # What starts one runs beside it, what ends one before its result is there.
        started = [c for c in operation.collectives if c.phase == "start"]
        for collective in started:
            duration = operation.executions * collective_seconds(collective, topology)
            collectives += duration
            links_free_at = max(now, links_free_at) + duration
            ends[collective.key] = links_free_at
        now += seconds
        for collective in operation.collectives:
            if collective.phase == "whole":
                duration = operation.executions * collective_seconds(collective, topology)
                collectives += duration
                links_free_at = max(now, links_free_at) + duration
                end = links_free_at
            elif collective.phase == "done":
                end = ends.pop(collective.key, now)
            else:
                continue
            exposed += max(0.0, end - now)
            now = max(now, end)
    return Estimate(compute, kernels, collectives, exposed, without_cost)


def kernel_seconds(kernel: Kernel, topology: Topology) -> float:
    """Of one call, on one device."""
    chip = topology.chip
    return (
        kernel.flops * chip.devices / chip.peak_flops_per_second
        + kernel.bytes_accessed * chip.devices / chip.hbm_bytes_per_second
        + kernel.transcendentals / (_VECTOR_ELEMENTS * _CORES.get(chip.name, 1) * chip.clock_hz)
    )


def collective_seconds(collective: Collective, topology: Topology) -> float:
    """Of one, from the bytes that each device has to send.

    A sum of all (all-reduce) is a reduce-scatter and an all-gather; each of these sends
    all but one part of the whole, and so, at most, does an all-to-all.
    """
    chip = topology.chip
    all_devices = topology.num_chips * chip.devices
    devices = collective.group_size or all_devices
    whole = collective.output_bytes
    if collective.kind == "reduce-scatter":
        whole *= devices
    sent = whole * (devices - 1) / devices
    if collective.kind == "all-reduce":
        sent *= 2
    elif collective.kind == "collective-permute":
        sent = whole
    bandwidth = chip.ici_bytes_per_second / chip.devices
    if collective.kind == "collective-permute":
        # To one neighbour, over one link.
        bandwidth /= 2 * chip.ici_axes
    elif devices < all_devices / topology.num_slices:
        bandwidth /= chip.ici_axes
    return sent / bandwidth
