"""dp, fsdp and zero1 train alike on eight devices, and open each other's checkpoints."""

import sys

import numpy as np
import pytest

from tests import runs
from tests.parallel.layouts import CASES, SAVED, STEPS
from tests.parallel.processes import finish


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Returns a function that reads a file of layouts.py."""
    folder = tmp_path_factory.mktemp("layouts")
    program = [sys.executable, "-m", "tests.parallel.layouts", str(folder)]
    ((status, _, err),) = finish([runs.start(program, devices=8)], seconds=1800)
    assert status == 0, err[-5000:]
    return lambda name: dict(np.load(folder / f"{name}.npz"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_layouts_train_alike(written, case):
    dp, fsdp, zero1 = (written(f"{case}_{layout}") for layout in ("dp", "fsdp", "zero1"))
    assert len(dp["metrics"]) == STEPS and np.isfinite(dp["metrics"]).all()
    # dp sums gradients in another order.
    rtol = 2e-2 if CASES[case].get("dtype") == "bfloat16" else 5e-6
    np.testing.assert_allclose(fsdp["metrics"], dp["metrics"], rtol=rtol)
    # The sums of zero1 have the order of fsdp.
    assert fsdp.keys() == zero1.keys()
    for name, value in fsdp.items():
        np.testing.assert_array_equal(zero1[name], value, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("saved", "other"), [("fsdp", "zero1"), ("zero1", "fsdp")])
def test_a_checkpoint_of_one_layout_opens_in_the_other(written, saved, other):
    state, restored = written(f"{SAVED}_{saved}"), written(f"{saved}_as_{other}")
    state.pop("metrics")
    assert state.keys() == restored.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(restored[name], value, err_msg=name)
