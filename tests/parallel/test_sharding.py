"""Sharding presets, and what a run says of them."""

import re

import jax
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict

from benchmarks.golden import sharding as golden_sharding
from bert_jax.base.errors import UserError
from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import make_terms
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.sharding import PRESETS, Layout
from bert_jax.pretraining.build import make_trainer
from bert_jax.pretraining.summary import describe_layout
from bert_jax.training.gathering import copied_bytes
from bert_jax.training.state import init_params
from tests.golden.inputs import read_json
from tests.parallel.fakes import slices
from tests.small import small_config

SIZES = {
    "dp": {},
    "fsdp": {"mesh.data": 2, "mesh.fsdp": 4},
    "zero1": {"mesh.data": 2, "mesh.fsdp": 4},
    "tp": {"mesh.model": 2},
    "fsdp_tp": {"mesh.fsdp": 2, "mesh.model": 2},
}
TABLE = "bert/embeddings/word_embeddings"


def sharded_trainer(preset, **overrides):
    one_layer = {"model.num_hidden_layers": 1, "sharding": preset}
    return make_trainer(small_config(**one_layer | SIZES[preset] | overrides), slices())


@pytest.mark.parametrize("preset", golden_sharding.MESHES)
@pytest.mark.parametrize("name", golden_sharding.CONFIGS)
def test_sharding_matches_the_golden_files(name, preset):
    golden = read_json(f"sharding_{name}_{preset}.json")
    actual = golden_sharding.sharding(name, preset)
    different = {
        key: (golden["parameters"].get(key), actual["parameters"].get(key))
        for key in sorted(golden["parameters"].keys() | actual["parameters"].keys())
        if golden["parameters"].get(key) != actual["parameters"].get(key)
    }
    assert (different, golden) == ({}, actual), (
        f"{name} under {preset} is not sharded as recorded: {different or 'see above'}. "
        "If this is intended, update the files: python -m benchmarks.golden.sharding"
    )


def test_axes_of_the_model_match_the_axes_of_the_rules():
    config = BertConfig(98, 24, 1, 4, 40)
    boxed = jax.eval_shape(lambda: init_params(PreTrainingModel(config, make_terms()), 0))
    leaves = jax.tree.leaves(boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))
    names = {name for leaf in leaves for name in leaf.names}
    ruled = {name for rules in PRESETS.values() for name, _ in rules}
    assert {name for name in ruled if not name.startswith("activation_")} <= names | {"batch"}


@pytest.mark.parametrize(("kind", "axis"), [("TPU v5", 1), ("TPU v6 lite", 0)])
def test_zero1_divides_matrices_by_rows_on_v6e(kind, axis):
    changes = {"sharding": "zero1", "model.intermediate_size": 64}
    config = small_config(**{"model.num_hidden_layers": 1} | SIZES["zero1"] | changes)
    params = make_trainer(config, slices(device_kind=kind)).shardings.params
    specs = {key: tuple(x.spec) for key, x in flatten_dict(params, sep="/").items()}
    layer = "bert/encoder/layer_0"
    assert specs[TABLE].index("fsdp") == specs[f"{layer}/output/kernel"].index("fsdp") == axis
    assert specs[f"{layer}/intermediate/kernel"][0] == "fsdp"
    # A fourth of its 32 rows is no whole tile.
    assert specs["bert/embeddings/position_embeddings"] == (None, "fsdp")


@pytest.mark.parametrize(
    ("kind", "copied_gib", "preset", "reason"),
    [
        ("TPU v5", 11.9, "zero1", "take 11.90 of 95.74 GiB, at most an eighth"),
        ("TPU v6 lite", 3.9, "zero1", "take 3.90 of 31.25 GiB, at most an eighth"),
        ("TPU v6 lite", 4.0, "fsdp", "take 4.00 of 31.25 GiB, more than an eighth"),
        ("TPU v5 lite", 0.1, "fsdp", "zero1 is for v5p and v6e"),
        ("NVIDIA H100", 0.1, "fsdp", "zero1 is for v5p and v6e"),
    ],
)
def test_auto_is_zero1_where_the_copies_have_room(kind, copied_gib, preset, reason):
    mesh = make_mesh({"data": -1, "fsdp": 4, "model": 1}, slices(device_kind=kind))
    layout = Layout.create(mesh, "auto").chosen_for(int(copied_gib * 2**30))
    assert layout.preset == preset and reason in layout.description
    named = Layout.create(mesh, "fsdp")
    assert named.chosen_for(0) == named and named.description == "fsdp"
    unsharded = Layout.create(make_mesh({"data": -1, "fsdp": 1, "model": 1}, slices()), "auto")
    assert unsharded.chosen_for(0).description == "dp (auto: the mesh has fsdp 1)"


def test_the_copies_are_those_of_the_matrices():
    trainer = sharded_trainer("zero1", dtype="bfloat16")
    # Four of 24 x 24 in attention, two of 24 x 40, the pooler's and the head's; the output layer of
    # NSP computes in float32.
    assert copied_bytes(trainer.model) == 2 * (6 * 24 * 24 + 2 * 24 * 40) + 4 * 24 * 2


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize("preset", ["fsdp", "tp", "fsdp_tp"])
def test_moments_are_sharded_like_their_parameters(preset, optimizer):
    trainer = sharded_trainer(preset, **{"optimizer.name": optimizer})
    (moments,) = [part for part in trainer.shardings.opt_state if hasattr(part, "mu")]
    assert moments.mu == moments.nu == trainer.shardings.params
    assert moments.count == trainer.shardings.step == trainer.layout.replicated
    sharded = [s for s in jax.tree.leaves(trainer.shardings.params) if not s.is_fully_replicated]
    assert sharded, "nothing is sharded: the test checks nothing"


class TestMesh:
    def test_a_preset_needs_devices_on_its_axes(self):
        with pytest.raises(UserError, match="sharding is 'fsdp' but config.mesh.fsdp is 1"):
            sharded_trainer("fsdp", **{"mesh.fsdp": 1, "mesh.data": -1})

    def test_axes_that_shard_nothing_are_refused(self):
        mesh = make_mesh({"data": 4, "fsdp": 1, "model": 2}, slices())
        with pytest.raises(UserError, match="model=1 --config.mesh.data=-1"):
            Layout.create(mesh, "dp")
        # The batch is sharded over `fsdp`.
        Layout.create(make_mesh({"data": 2, "fsdp": 4, "model": 1}, slices()), "dp")


def test_a_run_says_how_much_each_device_holds():
    said = describe_layout(sharded_trainer("fsdp"))
    assert said.startswith("mesh data 2, fsdp 4, model 1; sharding fsdp: each device holds ")
    here, whole = (int(text.replace(",", "")) for text in re.findall(r"[\d,]{5,}", said))
    # Vectors are not divided.
    assert whole / 4 < here < whole / 3
