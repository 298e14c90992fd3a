"""Times of collectives and kernels, computed by hand."""

import pytest

from bert_jax.tpu import topologies
from bert_jax.tpu.estimate import collective_seconds, estimate_step, kernel_seconds
from bert_jax.tpu.hlo import Collective, Kernel, Operation

# 1.5 GHz; 4 links of 50 GB/s each.
V5E = topologies.find("v5e:4x4")
MS_OF_CYCLES = 1_500_000


def collective(kind, output_bytes, group_size=16, phase="sync", key="1"):
    return Collective(kind, key, phase, output_bytes, group_size)


def operation(cycles=0, executions=1, collectives=(), kernel=None):
    return Operation("", cycles, executions, tuple(collectives), kernel)


@pytest.mark.parametrize(
    "kind, output_bytes, group_size, seconds",
    [
        # All 16 chips use all links, 200 GB/s, and send 15 of 16 parts.
        ("all-gather", 1.6e9, 16, 1.5e9 / 200e9),
        ("all-reduce", 1.6e9, 16, 3.0e9 / 200e9),
        ("reduce-scatter", 1e8, 16, 1.5e9 / 200e9),
        ("all-to-all", 1.6e9, 16, 1.5e9 / 200e9),
        # One axis of the torus: half of the links.
        ("all-gather", 1.6e9, 4, 1.2e9 / 100e9),
        # Without groups: all chips.
        ("all-gather", 1.6e9, 0, 1.5e9 / 200e9),
        # To a neighbor: one link.
        ("collective-permute", 1e9, 0, 1e9 / 50e9),
    ],
)
def test_collective_seconds(kind, output_bytes, group_size, seconds):
    found = collective_seconds(collective(kind, output_bytes, group_size), V5E)
    assert found == pytest.approx(seconds)


def test_two_devices_share_a_chips_links():
    v3 = topologies.find("v3:2x2")
    # Four chips with eight devices, each of which has half of 4 x 656 Gbit/s.
    found = collective_seconds(collective("all-gather", 8e9, 8), v3)
    assert found == pytest.approx(7e9 / (2 * 656e9 / 8))


def test_kernel_times_add_compute_and_memory():
    kernel = Kernel(flops=197_000_000, bytes_accessed=819_000, transcendentals=1_536_000)
    # One microsecond each; 1,024 transcendental functions per cycle at 1.5 GHz.
    assert kernel_seconds(kernel, V5E) == pytest.approx(3e-6)
    # Half of the elements per device, on a chip with two devices.
    v2 = topologies.find("v2:2x2")
    assert kernel_seconds(Kernel(flops=45_000_000), v2) == pytest.approx(2e-6)
    # v4's two cores are one device.
    v4 = topologies.find("v4:2x2x1")
    assert kernel_seconds(Kernel(transcendentals=2_150_400), v4) == pytest.approx(1e-6)


def test_step_waits_for_synchronous_collectives():
    found = estimate_step(
        [
            operation(MS_OF_CYCLES, executions=4),
            operation(0, 4, [collective("all-gather", 1.6e7)]),
            operation(0, 1, kernel=Kernel(flops=197_000_000)),
        ],
        V5E,
    )
    assert found.compute_seconds == pytest.approx(4e-3)
    assert found.collective_seconds == pytest.approx(found.exposed_collective_seconds)
    assert found.collective_seconds == pytest.approx(4 * 1.5e7 / 200e9)
    assert found.kernel_seconds == pytest.approx(1e-6)
    assert found.step_seconds == pytest.approx(4e-3 + 3e-4 + 1e-6)


# Each collective takes 1.5 ms.
SIZE = 3.2e8


@pytest.mark.parametrize("between, exposed", [(1, 0.5e-3), (2, 0.0), (0, 1.5e-3)])
def test_operations_in_between_hide_a_collective(between, exposed):
    found = estimate_step(
        [
            operation(5 * MS_OF_CYCLES),
            operation(collectives=[collective("all-gather", SIZE, phase="start")]),
            operation(between * MS_OF_CYCLES),
            operation(collectives=[collective("all-gather", SIZE, phase="done")]),
            operation(5 * MS_OF_CYCLES),
        ],
        V5E,
    )
    assert found.collective_seconds == pytest.approx(1.5e-3)
    assert found.exposed_collective_seconds == pytest.approx(exposed, abs=1e-12)
    assert found.step_seconds == pytest.approx((10 + between) * 1e-3 + exposed)


def test_collectives_wait_for_each_other():
    ends = [(phase, key) for phase in ("start", "done") for key in "ab"]
    steps = [
        operation(collectives=[collective("all-gather", SIZE, phase=phase, key=key)])
        for phase, key in ends
    ]
    # Both are started at once; 2 ms of computation hide only 2 of their 3 ms.
    steps.insert(2, operation(2 * MS_OF_CYCLES))
    found = estimate_step(steps, V5E)
    assert found.exposed_collective_seconds == pytest.approx(1e-3)
    # A synchronous collective begins after the one that is running.
    late = [steps[0], operation(collectives=[collective("all-reduce", SIZE)]), steps[3]]
    found = estimate_step(late, V5E)
    assert found.exposed_collective_seconds == pytest.approx(1.5e-3 + 3e-3)


@pytest.mark.parametrize("phases", [["done"], ["start", "start"]])
def test_starts_and_ends_must_match(phases):
    steps = [
        operation(collectives=[collective("all-gather", SIZE, phase=phase)]) for phase in phases
    ]
    with pytest.raises((KeyError, ValueError)):
        estimate_step(steps, V5E)
