"""Muon and StableAdamW take the same steps on one device and under every layout of four."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests import runs
from tests.parallel.four_devices import LAYOUTS, OPTIMIZERS


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    file = tmp_path_factory.mktemp("optimizers") / "results.json"
    subprocess.run(
        [sys.executable, "-m", "tests.parallel.four_devices", str(file)],
        env=runs.environment(devices=4),
        cwd=runs.ROOT,
        check=True,
    )
    return json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_do_not_depend_on_the_layout(results, optimizer, layout):
    """Dropout is on: another mask or batch would change the losses by 1e-2."""
    found, expected = results[f"{optimizer}, {layout}"], results[optimizer]
    assert expected["losses"][-1] < expected["losses"][0] - 0.1
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-4)
    # The moments are sharded like their parameters. Muon has one moment, Adam two.
    assert found["sharded"] == [layout != "dp"] * (1 if optimizer == "muon" else 2)
