"""The parser of compiled programs.

program.hlo is composed of lines from real programs. It has a scanned layer (4 times) that contains
a windowed product (8 times), an asynchronous all-gather spread over fusions, a gather on a
SparseCore, and one of every other operation that is parsed.

one_layer_*.hlo.xz are whole steps of one layer, compiled for four chips of each generation; see
one_layer.py.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.tpu import hlo
from tests.tpu import one_layer

FOLDER = Path(__file__).parent
TEXT = (FOLDER / "program.hlo").read_text()


@pytest.fixture(scope="module")
def operations():
    return {operation.name: operation for operation in hlo.read_operations(TEXT)}


def test_cycles_are_summed_over_loops(operations):
    # 640, a layer's 50 four times, the product's 300 in each of 8 windows of each layer, and the
    # costlier of two branches. The inside of a fusion is not counted again.
    assert hlo.total_cycles(list(operations.values())) == 640 + 4 * 50 + 4 * 8 * 300 + 70
    assert operations["fusion.1186"].executions == 32
    assert operations["fusion.1186"].total_cycles == 9600
    assert "add.1" not in operations and "negate.1" not in operations
    assert operations["copy-done.1"].cycles == 0
    # What runs on a SparseCore meanwhile is not part of the program's own time.
    assert operations["gather_offload_async_start.1"].cycles == 0
    assert not [name for name in operations if name.startswith("gather_offload_custom_fusion")]


def test_fields_of_operations(operations):
    fusion = operations["layer_norm.1"]
    assert (fusion.cycles, fusion.executions) == (50, 4)
    assert fusion.kernel is None and fusion.collectives == ()


def test_collectives(operations):
    found = {
        name: [(c.kind, c.phase, c.output_bytes, c.group_size) for c in operation.collectives]
        for name, operation in operations.items()
        if operation.collectives
    }
    gathered, permuted = 4 * 30592 * 256, 2 * 16 * 4 * 64
    assert found == {
        "async-collective-start": [("all-gather", "start", gathered, 16)],
        "async-collective-done": [("all-gather", "done", gathered, 16)],
        "collective-permute-start.72": [("collective-permute", "start", permuted, 0)],
        "collective-permute-done.72": [("collective-permute", "done", permuted, 0)],
        # Axes of 4 and 2 devices.
        "all-reduce.51": [("all-reduce", "sync", 2 * 256 * 4 * 64 + 4 * 256, 8)],
        # Each of four devices keeps a quarter of the padded sum.
        "reduce_scatter_fusion": [("reduce-scatter", "sync", 2 * 1040 * 4096, 4)],
        "all_to_all.21": [("all-to-all", "sync", 2 * 4 * 256 * 1024, 2)],
    }
    start, done = (
        operations[f"async-collective-{end}"].collectives[0] for end in ("start", "done")
    )
    assert start.key == done.key
    start, done = (
        operations[f"collective-permute-{e}.72"].collectives[0] for e in ("start", "done")
    )
    assert start.key == done.key


OFFLOADED = """%called.22 (p: bf16[1024,1024]) -> bf16[1024,1024] {
  %p = bf16[1024,1024]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-reduce.253 = bf16[1024,1024]{1,0:T(8,128)(2,1)} all-reduce(%p), channel_id=188, \
replica_groups=mesh['axis_0'=8,'axis_1'=64] {'axis_1'}, to_apply=%add.71.clone.clone
}, execution_thread="sparsecore"

ENTRY %main (a: bf16[1024,1024]) -> bf16[1024,1024] {
  %a = bf16[1024,1024]{1,0:T(8,128)(2,1)} parameter(0)
  %r.start = ((), (), (s32[1]{0:T(128)S(2)})) call-start(), to_apply=%called.22
  %r.update = ((bf16[1024,1024]), bf16[1024,1024]) call-update(%r.start, %a)
  ROOT %r.done = bf16[1024,1024]{1,0:T(8,128)(2,1)} call-done(%r.update)
}
"""


def test_a_collective_on_a_sparsecore_runs_from_its_operands_to_its_end():
    def phases(text):
        operations = hlo.read_operations(text)
        return {o.name: [c.phase for c in o.collectives] for o in operations}, operations

    found, operations = phases(OFFLOADED)
    assert found == {"a": [], "r.start": [], "r.update": ["start"], "r.done": ["done"]}
    *_, (start,), (done,) = (operation.collectives for operation in operations)
    assert start.key == done.key
    assert (start.kind, start.output_bytes, start.group_size) == ("all-reduce", 2 * 1024**2, 64)
    # A call may also have its operands from the start.
    lines = OFFLOADED.replace("call-start()", "call-start(%a)").replace("(%r.update)", "(%r.start)")
    text = "".join(line for line in lines.splitlines(True) if "call-update" not in line)
    assert phases(text)[0] == {"a": [], "r.start": ["start"], "r.done": ["done"]}


def one_collective(opcode, attributes):
    """Reads a program whose only operation is a collective."""
    text = f"""ENTRY %main (a: f32[8]) -> f32[8] {{
  ROOT %c.1 = f32[8]{{0}} {opcode}(%a), channel_id=1, {attributes}, metadata={{op_name="x"}}
}}
"""
    (operation,) = hlo.read_operations(text)
    return operation.collectives[0]


@pytest.mark.parametrize(
    "groups, size",
    [
        ("{}", 0),
        ("{{0,1,2,3}}", 4),
        ("{{0,1},{2,3},{4,5}}", 2),
        ("{{0},{1}}", 1),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("[2,8]<=[2,2,4]T(1,0,2)", 8),
        ("mesh['axis_0'=2,'axis_1'=8] {'axis_1'}", 8),
        ("mesh['axis_0'=4,'axis_1'=2,'axis_2'=2] {'axis_0','axis_2'}", 8),
        ("mesh['axis_0'=1,'axis_1'=16,'axis_2'=16], device_ids=([16,16]T(1,0)) {'axis_1'}", 16),
        ("mesh['a'=2,'b'=4], device_ids=(7,6,5,4,3,2,1,0) {'a','b'}", 8),
        ("mesh['a'=2,'b'=8], device_ids=([2,2,4]T(1,0,2)) {'a','b':(2)4}", 8),
    ],
)
def test_groups_of_devices(groups, size):
    for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        attributes = f"replica_groups={groups}, use_global_device_ids=true"
        assert one_collective(kind, attributes).group_size == size


@pytest.mark.parametrize(
    "opcode, attributes",
    [
        ("all-reduce", "to_apply=%add"),
        ("all-reduce", "replica_groups={{0,1},{2}}"),
        ("all-gather", "replica_groups=maximal[3]"),
        ("all-gather", "replica_groups=mesh['a'=2] {'b'}"),
        ("all-gather", "replica_groups=mesh['a'=2] {}"),
        ("all-gather", "replica_groups=mesh['a'=2], order={1,0} {'a'}"),
        ("collective-permute", "dimensions={0}"),
    ],
)
def test_what_is_not_understood_is_an_error(opcode, attributes):
    with pytest.raises(ValueError, match="are not understood"):
        one_collective(opcode, attributes)


def test_bytes_of_collectives_over_a_step(operations):
    assert hlo.collective_bytes(list(operations.values())) == {
        "all-gather": {"count": 1, "bytes": 4 * 30592 * 256},
        "collective-permute": {"count": 32, "bytes": 32 * 2 * 16 * 4 * 64},
        "all-reduce": {"count": 4, "bytes": 4 * (2 * 256 * 4 * 64 + 4 * 256)},
        "reduce-scatter": {"count": 1, "bytes": 2 * 1040 * 4096},
        "all-to-all": {"count": 1, "bytes": 2 * 4 * 256 * 1024},
    }


def test_kernels(operations):
    assert operations["flash.1"].kernel == hlo.Kernel(268435456, 3145728, 77)
    assert operations["costless.1"].kernel == hlo.Kernel(0, 0, 0)
    others = [o for o in operations.values() if o.kernel is None]
    assert len(others) == len(operations) - 2


# What is known of the program of one layer, on each of four devices. H 256, F 1,024, V 1,024; 16
# sequences of 128 tokens, 16 of them predicted.
TOKENS, PREDICTED, SEQUENCES = 16 * 128, 16 * 16, 16
LAYER, HEAD, POOLER = 4 * 256**2 + 2 * 256 * 1024, 256**2 + 256 * 1024, 256**2
# Forward and, twice as much, backward.
PRODUCTS = 6 * (TOKENS * LAYER + PREDICTED * HEAD + SEQUENCES * POOLER)
# Matrices and the table of words in bfloat16; positions, the layer of next sentences and the
# gradient of a bias in float32.
GATHERED = 2 * (LAYER + HEAD + POOLER) + 4 * (128 * 256 + 2 * 256 + 256)


def check_one_layer(text):
    operations = hlo.read_operations(text)
    products = sum(o.executions * o.product_flops for o in operations)
    # Sums of columns and rows of small tables are products too.
    assert PRODUCTS < products < 1.01 * PRODUCTS
    assert hlo.total_flops(operations) > SEQUENCES * one_layer.flops_per_sequence()
    # v5p moves the smallest matrix in other ways.
    gathered = hlo.collective_bytes(operations)["all-gather"]["bytes"]
    assert gathered == pytest.approx(GATHERED, rel=1e-3)


@pytest.mark.parametrize("chip", one_layer.TOPOLOGIES)
def test_the_counts_of_one_layer_are_the_known_ones(chip):
    check_one_layer(one_layer.program_of(chip))


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="no TPU compiler here: pip install -e '.[tpu]'",
)
def test_the_counts_of_one_layer_with_the_installed_compiler(tmp_path):
    program = [sys.executable, "-m", "tests.tpu.one_layer", str(tmp_path)]
    subprocess.run(program, check=True, env=os.environ)
    for chip in one_layer.TOPOLOGIES:
        check_one_layer(one_layer.program_of(chip, tmp_path))
