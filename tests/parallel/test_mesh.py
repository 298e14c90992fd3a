"""Meshes of one slice and of several."""

import re

import numpy as np
import pytest
from jax.experimental import topologies

from bert_jax.base.errors import UserError
from bert_jax.parallel.mesh import make_mesh, num_data_shards, num_slices
from bert_jax.parallel.sharding import Layout
from bert_jax.pretraining.build import make_trainer
from tests.parallel.fakes import slices
from tests.small import random_batch, small_config


def test_size_of_minus_one_is_inferred():
    mesh = make_mesh({"data": 2, "fsdp": -1, "model": 2}, slices())
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "model": 2}
    assert num_data_shards(mesh) == 4
    assert sorted(device.id for device in mesh.devices.flat) == list(range(8))


@pytest.mark.parametrize("sizes", [(16, 1, 1), (2, 2, 1), (-1, 3, 1), (-1, 16, 1)])
def test_sizes_must_multiply_to_the_devices(sizes):
    sizes_text = "data={}, fsdp={}, model={}".format(*sizes)
    with pytest.raises(UserError) as error:
        make_mesh(dict(zip(("data", "fsdp", "model"), sizes, strict=True)), slices())
    assert str(error.value) == (
        f"the sizes of config.mesh ({sizes_text}) do not multiply to the 8 available device(s)"
    )


@pytest.mark.parametrize(
    ("sharding", "sizes", "widths", "slices_of", "expected"),
    [
        # BERT-large on one slice, on two, and on a small one.
        ("auto", (-1, 0, 1), (1024, 0), (1, 16, 16), (4, 64, 1)),
        ("auto", (-1, 0, 1), (1024, 0), (2, 16, 16), (8, 64, 1)),
        ("fsdp", (-1, 0, 1), (1024, 0), (1, 4, 4), (1, 16, 1)),
        ("auto", (-1, 0, 1), (1024, 0), (1, 1, 1), (1, 1, 1)),
        # BERT-base has 48 columns on each of 16 chips, ALBERT's embeddings 16 on each of 8.
        ("auto", (-1, 0, 1), (768, 0), (1, 16, 16), (16, 16, 1)),
        ("auto", (-1, 0, 1), (768, 128), (1, 16, 16), (32, 8, 1)),
        ("auto", (-1, 0, 1), (24, 0), (1, 4, 4), (16, 1, 1)),
        # What was typed wins.
        ("auto", (-1, 16, 1), (1024, 0), (1, 16, 16), (16, 16, 1)),
        ("auto", (-1, 1, 1), (1024, 0), (1, 16, 16), (256, 1, 1)),
        ("auto", (32, 0, 1), (1024, 0), (1, 16, 16), (32, 8, 1)),
        ("auto", (4, 0, 1), (1024, 0), (2, 4, 4), (4, 8, 1)),
        ("dp", (-1, 0, 1), (1024, 0), (1, 16, 16), (256, 1, 1)),
        ("tp", (-1, 0, 4), (1024, 0), (1, 4, 4), (4, 1, 4)),
        ("fsdp_tp", (-1, 0, 4), (1024, 0), (1, 16, 16), (1, 64, 4)),
        ("fsdp_tp", (4, 0, -1), (1024, 0), (1, 4, 4), (4, 4, 1)),
    ],
)
def test_the_size_of_fsdp_is_chosen_if_it_is_0(sharding, sizes, widths, slices_of, expected):
    sizes = dict(zip(("data", "fsdp", "model"), sizes, strict=True))
    mesh = make_mesh(sizes, slices(*slices_of), sharding=sharding, widths=widths)
    assert tuple(mesh.shape.values()) == expected


def test_auto_is_dp_without_tpus():
    gpus = slices(platform="gpu", device_kind="NVIDIA H100")
    mesh = make_mesh({"data": -1, "fsdp": 0, "model": 1}, gpus, sharding="auto", widths=(1024,))
    assert mesh.shape["fsdp"] == 1
    assert Layout.create(mesh, "auto").preset == "dp"
    mesh = make_mesh({"data": -1, "fsdp": 4, "model": 1}, gpus, sharding="auto", widths=(1024,))
    assert Layout.create(mesh, "auto").preset == "fsdp"


@pytest.mark.parametrize("count", [2, 4])
def test_slices_are_arranged_along_the_data_axis(count):
    """Neighbors along any other axis must be in the same slice."""
    mesh = make_mesh({"data": -1, "fsdp": 2, "model": 2}, slices(count))
    assert dict(mesh.shape) == {"data": 2 * count, "fsdp": 2, "model": 2}
    of_each = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    assert (of_each == of_each[:, :1, :1]).all()
    # Slices are contiguous, so that sums over `data` can be taken inside each slice first.
    np.testing.assert_array_equal(of_each[:, 0, 0], np.repeat(np.arange(count), 2))


def test_neighbors_along_model_are_neighbors_in_the_torus():
    for mesh in (
        make_mesh({"data": -1, "fsdp": 1, "model": 4}, slices(1, 4, 4)),
        make_mesh({"data": -1, "fsdp": 1, "model": 4}, slices(2, 4, 4)),
    ):
        for row in mesh.devices.reshape(-1, 4):
            coords = np.array([device.coords for device in row])
            assert (np.abs(np.diff(coords, axis=0)).sum(axis=1) == 1).all()


def test_hosts_of_gpus_are_not_slices():
    """On GPUs, JAX's slice_index counts hosts, between which any axis may run."""
    devices = slices(2, platform="gpu", device_kind="NVIDIA H100")
    assert num_slices(devices) == 1 and num_slices(slices(2)) == 2
    assert dict(make_mesh({"data": 1, "fsdp": 16, "model": 1}, devices).shape)["fsdp"] == 16


@pytest.mark.slow
def test_only_the_data_axis_runs_between_real_slices(monkeypatch):
    """In the compiled TPU program, the groups of devices are inside slices."""
    pytest.importorskip("libtpu", reason="the TPU compiler is not here: pip install libtpu")
    for name in ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        monkeypatch.setenv(name, "1")
    devices = topologies.get_topology_desc(
        platform="tpu", topology_name="v5e:2x2", num_slices=2
    ).devices
    assert num_slices(devices) == 2
    overrides = {"sharding": "fsdp", "mesh.fsdp": 4, "model.num_hidden_layers": 1}
    trainer = make_trainer(small_config(**overrides), devices)
    arguments = trainer.abstract_state(), random_batch(0), trainer.frozen
    text = trainer.compiled_train_step.lower(*arguments).compile().as_text()
    groups = set(re.findall(r"replica_groups=\{\{([\d,]*)\}", text))
    assert groups == {"0,1,2,3"}
    assert "MegascaleRendezvousKeyName" in text
