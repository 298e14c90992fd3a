"""Eight devices with sharded parameters compute the same as one device."""

import json
import math
import sys
from contextlib import closing

import jax
import numpy as np
import pytest

from bert_jax.pretraining.build import make_trainer
from bert_jax.training.checkpoint import Checkpointer
from tests import runs
from tests.parallel.eight_devices import CASES, SMALL, STEPS, restore
from tests.parallel.processes import finish
from tests.small import LENGTH, flat, small_config


@pytest.fixture(scope="module")
def trainer():
    return make_trainer(small_config(**SMALL), jax.devices()[:1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory, trainer):
    """Returns the directory of files written by the process with eight devices."""
    folder = tmp_path_factory.mktemp("parallel")
    state = jax.tree.map(lambda leaf: leaf + 1, trainer.init_state())
    with closing(Checkpointer(folder / "one")) as checkpointer:
        checkpointer.save(1, state, {})
    np.savez(folder / "one.npz", **flat(state))
    (folder / "stderr.txt").write_text(on_eight_devices(folder))
    return folder


def on_eight_devices(folder):
    """Runs eight_devices.py; returns its stderr."""
    program = [sys.executable, "-m", "tests.parallel.eight_devices", str(folder)]
    # At log level 0, XLA prints its warnings.
    process = runs.start(program, devices=8, TF_CPP_MIN_LOG_LEVEL="0")
    ((status, _, err),) = finish([process], seconds=900)
    assert status == 0, err[-5000:]
    return err


@pytest.fixture(scope="module")
def results(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("case", CASES)
def test_losses_do_not_depend_on_the_devices(results, case):
    """Dropout is on: another mask or batch would change the losses by 1e-2."""
    # Sums are computed in another order, and 20 steps of Adam amplify the rounding differences.
    expected = results["reference"][case.split(",")[0] if "," in case else "plain"]
    actual = results["cases"][case]["losses"]
    assert len(actual) == STEPS
    np.testing.assert_allclose(actual[0], expected[0], rtol=2e-6)
    np.testing.assert_allclose(actual, expected, rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_the_state_is_donated_without_a_warning(results, case):
    assert results["cases"][case]["donated"]


@pytest.mark.parametrize(
    ("case", "name", "parts"),
    [
        ("accumulated, fsdp=4", "bert/embeddings/word_embeddings", (1, 4)),
        ("accumulated, fsdp=4", "bert/encoder/layer_0/attention/query_kernel", (4, 1, 1)),
        ("accumulated, fsdp=4", "bert/encoder/layer_0/attention/output_kernel", (1, 1, 4)),
        ("accumulated, fsdp=4", "bert/encoder/layer_0/output/kernel", (1, 4)),
        ("fsdp_tp", "mlm/transform/kernel", (2, 1)),
        ("fsdp_tp", "mlm/output_bias", (2,)),
        ("fsdp_tp", "bert/encoder/layer_0/intermediate/kernel", (2, 2)),
        ("fsdp_tp", "bert/embeddings/word_embeddings", (2, 2)),
        ("accumulated, fsdp=4", "bert/encoder/layer_0/intermediate/kernel", (4, 1)),
    ],
)
def test_parameters_and_moments_are_divided(results, case, name, parts):
    for kind in ("params", "mu"):
        whole, here = results["cases"][case]["layout"][f"{kind}/{name}"]
        assert tuple(np.floor_divide(whole, here)) == parts, (whole, here)


@pytest.mark.parametrize("case", ["accumulated, fsdp=4", "accumulated, zero1"])
def test_fsdp_and_zero1_shard_every_matrix(results, case):
    for name, (whole, here) in results["cases"][case]["layout"].items():
        if name.endswith(("kernel", "embeddings")):
            assert math.prod(whole) == 4 * math.prod(here), name


@pytest.mark.parametrize("case", CASES)
def test_hidden_states_are_not_exchanged_between_devices(results, case):
    """Devices exchange parameters and sums, never hidden states [B, L, ...]."""
    moved = results["cases"][case]["moved"]
    assert not [shape for shape in moved if len(shape) > 2 and LENGTH in shape]
    # The word embeddings are exchanged.
    rows = 64 if "tp" in case else 128
    assert [rows, 24] in moved


def test_no_array_is_fully_replicated_to_reshard_it(folder):
    """XLA warns if it finds no other way to convert between two shardings."""
    warnings = (folder / "stderr.txt").read_text()
    assert "rematerialization" not in warnings, warnings


def test_checkpoint_of_one_device_can_be_restored_on_eight(results):
    assert results["restored"] == {"equal": True, "laid out": True}


def test_checkpoint_of_eight_devices_can_be_restored_on_one(folder, trainer):
    assert len(jax.devices()) == 1
    case = "fsdp_tp"
    assert restore(folder, case, trainer) == {"equal": True, "laid out": True}
    state, resume = Checkpointer(folder / case).restore_newest(trainer.abstract_state())
    assert resume == {"name": case} and int(state.step) == STEPS
    assert all(len(leaf.sharding.device_set) == 1 for leaf in jax.tree.leaves(state))


@pytest.mark.slow
def test_the_attention_kernels_are_right_on_a_mesh(tmp_path):
    """Each device runs a kernel on its own sequences and heads, with their dropout masks."""
    on_eight_devices(tmp_path)
    found = json.loads((tmp_path / "kernel.json").read_text())
    for platform in ("tpu", "gpu"):
        assert found[platform]["sharded"]
        # bfloat16 has 8 bits; with another mask, the difference would be 0.6.
        assert found[platform]["difference"] < 2**-6
    # The kernel needs a row for each device, though only one is shown.
    assert found["masks"] == [16, 14, 12, 10, 8, 6, 4, 2, 0]


def test_evaluation_does_not_depend_on_the_devices(results):
    one, eight = results["evaluated"].values()
    assert one.keys() == eight.keys() and one["num_sequences"] == 13
    for name, value in one.items():
        np.testing.assert_allclose(eight[name], value, rtol=2e-6, err_msg=name)
