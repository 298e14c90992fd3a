"""Names of slices, and their devices if the TPU compiler is installed."""

import importlib.util
import subprocess
import sys

import pytest

from bert_jax.base.errors import UserError
from bert_jax.parallel.chips import CHIPS
from bert_jax.tpu import topologies

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="no TPU compiler here: pip install -e '.[tpu]'",
)


@pytest.mark.parametrize(
    "name, topology, chips",
    [
        (" V6E:1x1 ", "v6e:1x1", 1),
        # These names count cores, two per chip.
        ("v2-8", "v2:2x2", 4),
        ("v3-128", "v3:8x8", 64),
        ("v4-128", "v4:4x4x4", 64),
        ("v5p-1024", "v5p:8x8x8", 512),
        # These names count chips.
        ("v5litepod-256", "v5e:16x16", 256),
    ],
)
def test_names(name, topology, chips):
    found = topologies.find(name)
    assert (found.name, found.num_chips) == (topology, chips)


@pytest.mark.parametrize("name", ["v4-127", "v6-64", "v5e:16x16x16x1", "v5e:0x4", "v5e:4"])
def test_unknown_names(name):
    with pytest.raises(UserError, match=f"no TPU is called '{name}': .* such as v5e:16x16"):
        topologies.find(name)


def test_peaks_match_the_matrix_units():
    # Each unit has 128 x 128 or 256 x 256 cells, with one multiplication and addition per cycle.
    units = {"v2": 2, "v3": 4, "v4": 8, "v5e": 4, "v5p": 8, "v6e": 16}
    assert set(units) == set(CHIPS)
    for name, count in units.items():
        chip = CHIPS[name]
        peak = count * 2 * 128**2 * chip.clock_hz
        assert chip.peak_flops_per_second == pytest.approx(peak, rel=0.02), name


DEVICES = """
from bert_jax.parallel.chips import CHIPS
from bert_jax.tpu import topologies
for name, slices in (
    ("v2:2x2", 1), ("v3-128", 1), ("v4-128", 1), ("v4:1x1x1", 1), ("v5e:1x1", 1), ("v5e:2x4", 1),
    ("v5e:16x16", 1), ("v5p:8x8x8", 1), ("v6e-64", 1), ("v5e:4x4", 2),
):
    found = topologies.devices(topologies.find(name, slices))
    hosts = len({device.process_index for device in found})
    print(name, len(found), hosts, found[0].device_kind in topologies.find(name).chip.device_kinds)
"""


@needs_libtpu
def test_devices():
    # In a separate process, because the compiler stays in the process that loads it.
    done = subprocess.run([sys.executable, "-c", DEVICES], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.splitlines() == [
        "v2:2x2 8 1 True",
        "v3-128 128 16 True",
        "v4-128 64 16 True",
        "v4:1x1x1 1 1 True",
        "v5e:1x1 1 1 True",
        "v5e:2x4 8 1 True",
        "v5e:16x16 256 64 True",
        "v5p:8x8x8 512 128 True",
        "v6e-64 64 16 True",
        "v5e:4x4 32 8 True",
    ]
