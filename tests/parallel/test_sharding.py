"""Sharding presets, users' rules, the replicated fraction, and the table of parameters."""

import jax
import numpy as np
import pytest
from flax import linen as nn
from rich.console import Console

from benchmarks.golden import sharding as golden_sharding
from bert_jax.base.errors import UserError
from bert_jax.config.common import COMMON
from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.objective import apply
from bert_jax.objectives.terms import make_terms
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.sharding import PRESETS, Layout, mesh_axes
from bert_jax.pretraining.build import make_trainer
from bert_jax.pretraining.summary import parameter_rows, parameter_table
from bert_jax.training.state import init_params
from tests.golden.inputs import read_json
from tests.parallel.fakes import slices
from tests.small import random_batch, small_config

SIZES = {
    "dp": {},
    "fsdp": {"mesh.data": 2, "mesh.fsdp": 4},
    "tp": {"mesh.model": 2},
    "fsdp_tp": {"mesh.fsdp": 2, "mesh.model": 2},
}
TABLE = "bert/embeddings/word_embeddings"


def sharded_trainer(preset, **overrides):
    one_layer = {"model.num_hidden_layers": 1, "sharding": preset}
    return make_trainer(small_config(**one_layer | SIZES[preset] | overrides), slices())


def rows_of(trainer):
    return {row.name: row for row in parameter_rows(trainer.abstract_state().params)}


@pytest.mark.parametrize("preset", PRESETS)
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


def test_golden_files_contain_the_expected_shardings():
    """Checks some values by hand, because the code itself generates the golden files."""
    large = read_json("sharding_large_fsdp_tp.json")
    table = large["parameters"][TABLE]
    assert table["shape"] == [30592, 1024] and table["divided_over"] == ["model", "fsdp"]
    assert table["bytes_per_device"] == 30592 * 1024 * 4 / 4
    query = large["parameters"]["bert/encoder/layer_*/attention/query_kernel"]
    assert query["count"] == 24 and query["divided_over"] == ["fsdp", "model", ""]
    whole = read_json("sharding_large_dp.json")["bytes_per_device"]
    # The model has 336,226,108 parameters, plus 70 rows of padding with their biases.
    assert whole == 4 * (336_226_108 + 70 * 1025)
    fsdp = read_json("sharding_large_fsdp.json")
    assert whole / 8 < fsdp["bytes_per_device"] < 1.01 * whole / 8


def test_presets_match_the_config():
    assert ("auto", *PRESETS) == COMMON["sharding"].choices


def test_axes_of_the_model_match_the_axes_of_the_rules():
    config = BertConfig(98, 24, 1, 4, 40)
    boxed = jax.eval_shape(lambda: init_params(PreTrainingModel(config, make_terms()), 0))
    leaves = jax.tree.leaves(boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))
    names = {name for leaf in leaves for name in leaf.names}
    ruled = {name for rules in PRESETS.values() for name, _ in rules}
    assert {name for name in ruled if not name.startswith("activation_")} <= names | {"batch"}


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize("preset", ["fsdp", "tp", "fsdp_tp"])
def test_moments_are_sharded_like_their_parameters(preset, optimizer):
    trainer = sharded_trainer(preset, **{"optimizer.name": optimizer})
    (moments,) = [part for part in trainer.shardings.opt_state if hasattr(part, "mu")]
    assert moments.mu == moments.nu == trainer.shardings.params
    assert moments.count == trainer.shardings.step == trainer.layout.replicated
    sharded = [s for s in jax.tree.leaves(trainer.shardings.params) if mesh_axes(s)]
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

    def test_sizes_that_do_not_divide(self):
        with pytest.raises(UserError) as error:
            sharded_trainer("fsdp", **{"mesh.data": 1, "mesh.fsdp": 8, "model.hidden_size": 20})
        assert str(error.value).startswith(
            "bert/embeddings/position_embeddings of shape (32, 20) cannot be split evenly over "
            "the 8 devices of config.mesh.fsdp; make 20 a multiple of 8"
        )
        with pytest.raises(UserError, match="8 devices of config.mesh.model"):
            sharded_trainer("tp", **{"mesh.model": 8})


class TestReport:
    def test_layers_with_equal_shardings_are_one_row(self):
        trainer = sharded_trainer("fsdp_tp", **{"model.num_hidden_layers": 3})
        rows = rows_of(trainer)
        row = rows["bert/encoder/layer_*/output/kernel"]
        assert (row.count, row.shape, row.spec) == (3, (40, 24), ("model", "fsdp"))
        assert row.bytes_per_device == 3 * 40 * 24 * 4 // 4
        params = trainer.abstract_state().params
        assert sum(row.count for row in rows.values()) == len(jax.tree.leaves(params))
        expected = sum(
            np.prod(leaf.sharding.shard_shape(leaf.shape)) * 4 for leaf in jax.tree.leaves(params)
        )
        assert sum(row.bytes_per_device for row in rows.values()) == expected

    def test_the_table(self):
        trainer = sharded_trainer("tp", **{"model.num_hidden_layers": 2})
        state = trainer.abstract_state()
        with (console := Console(width=120)).capture() as capture:
            console.print(parameter_table(state, trainer.mesh, "tp"))
        lines = [" ".join(line.split()) for line in capture.get().splitlines()]
        assert lines[0] == "Parameters under 'tp' on the mesh data 4, fsdp 1, model 2"
        assert f"{TABLE} 128x24 model, - 6,144" in lines
        assert "bert/encoder/layer_*/attention/query_bias 2 x 4x6 model, - 96" in lines
        assert "bert/pooler/dense/kernel 24x24 replicated 2,304" in lines
        params = jax.tree.leaves(state.params)
        here = sum(np.prod(p.sharding.shard_shape(p.shape)) * 4 for p in params)
        everything = sum(p.size * 4 for p in params)
        assert f"all parameters: {everything:,} bytes {here:,}" in lines
        # Two moments and two step counters: Adam's and the schedule's.
        assert f"optimizer state: {2 * everything + 8:,} bytes {2 * here + 8:,}" in lines


def test_constraints_have_no_effect_without_rules():
    """The models can be used without a mesh."""
    model = PreTrainingModel(BertConfig(98, 24, 1, 4, 40, max_position_embeddings=32), make_terms())
    params = nn.unbox(jax.eval_shape(lambda: init_params(model, 0)))

    def forward(params):
        return apply(model, params, random_batch(0))

    assert "sharding_constraint" not in str(jax.make_jaxpr(forward)(params))
    with sharded_trainer("fsdp_tp").layout.in_scope():
        assert str(jax.make_jaxpr(lambda p: forward(p))(params)).count("sharding_constraint") >= 5
