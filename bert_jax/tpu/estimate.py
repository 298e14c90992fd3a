"""Estimates the time of a compiled TPU step; nothing here is measured.

The estimate has three parts:

- computing: the sum of the compiler's cycle counts;
- Pallas kernels, which have no cycles: the arithmetic and the memory traffic that they
  declare with `pl.CostEstimate`, each at the chip's peak, without overlap. Vector arithmetic
  that they do not declare is not included;
- collectives, which have no cycles either: their bytes divided by the bandwidth of the links.
  A collective among all chips of a slice uses all links; any other collective uses the links of
  one axis of the torus. Asynchronous collectives run one at a time, in parallel with the
  operations between their start and end. The step waits for all other collectives.

The estimate does not include the latency of collectives (which dominates small collectives), the
network between slices, the host, input or checkpoints.
"""

import dataclasses

from bert_jax.tpu.hlo import Collective, Kernel, Operation
from bert_jax.tpu.topologies import Topology

# Elements that a core's vector unit processes in a cycle: 8 sublanes of 128 lanes.
_VECTOR_ELEMENTS = 1024
# Cores per device, for chips where it is not 1.
_CORES = {"v4": 2, "v5p": 2}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The estimated time of one step.

    Attributes:
      compute_seconds: The time of the compiler's cycles.
      kernel_seconds: The time of Pallas kernels.
      collective_seconds: The time of all collectives, hidden or not.
      exposed_collective_seconds: The time that the step waits for collectives.
    """

    compute_seconds: float
    kernel_seconds: float
    collective_seconds: float
    exposed_collective_seconds: float

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.kernel_seconds + self.exposed_collective_seconds


def estimate_step(operations: list[Operation], topology: Topology) -> Estimate:
    """Estimates the time of a step from a program's operations in the order of their schedule."""
    chip = topology.chip
    compute = kernels = collectives = exposed = 0.0
    # The end of each running collective. The links serve one collective at a time.
    ends: dict[str, float] = {}
    links_free_at = now = 0.0
    for operation in operations:
        seconds = operation.total_cycles / chip.clock_hz
        compute += seconds
        if operation.kernel is not None:
            in_kernel = operation.executions * kernel_seconds(operation.kernel, topology)
            kernels += in_kernel
            seconds += in_kernel
        # A collective runs in parallel with the operation that starts it.
        started = [c for c in operation.collectives if c.phase == "start"]
        for collective in started:
            duration = operation.executions * collective_seconds(collective, topology)
            collectives += duration
            links_free_at = max(now, links_free_at) + duration
            if collective.key in ends:
                raise ValueError(f"{operation.name} starts a collective that has not ended")
            ends[collective.key] = links_free_at
        now += seconds
        for collective in operation.collectives:
            if collective.phase == "sync":
                duration = operation.executions * collective_seconds(collective, topology)
                collectives += duration
                links_free_at = max(now, links_free_at) + duration
                end = links_free_at
            elif collective.phase == "done":
                end = ends.pop(collective.key)
            else:
                continue
            exposed += max(0.0, end - now)
            now = max(now, end)
    return Estimate(compute, kernels, collectives, exposed)


def kernel_seconds(kernel: Kernel, topology: Topology) -> float:
    chip = topology.chip
    return (
        kernel.flops * chip.devices / chip.peak_flops_per_second
        + kernel.bytes_accessed * chip.devices / chip.hbm_bytes_per_second
        + kernel.transcendentals / (_VECTOR_ELEMENTS * _CORES.get(chip.name, 1) * chip.clock_hz)
    )


def collective_seconds(collective: Collective, topology: Topology) -> float:
    """Estimates the time of one collective from the bytes that each device sends.

    A reduce-scatter and an all-gather send all but one part of the array. An all-to-all sends
    at most as much. An all-reduce is a reduce-scatter and an all-gather.
    """
    chip = topology.chip
    all_devices = topology.num_chips * chip.devices
    devices = collective.group_size or all_devices
    full_bytes = collective.output_bytes
    if collective.kind == "reduce-scatter":
        full_bytes *= devices
    sent = full_bytes * (devices - 1) / devices
    if collective.kind == "all-reduce":
        sent *= 2
    elif collective.kind == "collective-permute":
        sent = full_bytes
    bandwidth = chip.ici_bytes_per_second / chip.devices
    if collective.kind == "collective-permute":
        # Sends to one neighbor, over one link.
        bandwidth /= 2 * chip.ici_axes
    elif devices < all_devices / topology.num_slices:
        bandwidth /= chip.ici_axes
    return sent / bandwidth
