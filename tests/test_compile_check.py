"""compile_check: its flags, search and figures; with libtpu, real compilations."""

import importlib.util
import json
import sys

import jax
import pytest

from bert_jax import cli, compile_check
from bert_jax.errors import UserError
from bert_jax.tpu import topologies
from bert_jax.tpu.compilation import Compiled, needed_bytes
from bert_jax.tpu.hlo import Kernel, Operation
from bert_jax.training.trainer import Trainer
from tests import runs
from tests.refusals import one_sentence
from tests.small import random_batch, small_config

COMMAND = [sys.executable, "-m", "bert_jax.compile_check", "--config=configs/tiny.py"]
SMALL = {
    "model.vocab_size": 98,
    "model.hidden_size": 32,
    "model.num_hidden_layers": 1,
    "model.intermediate_size": 40,
    "train.batch_size": 16,
    "train.stages[0].max_seq_length": 16,
    "train.stages[0].max_predictions_per_seq": 4,
}
GIB = 2**30

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="no TPU compiler here: pip install -e '.[tpu]'",
)


def command(*flags, **overrides):
    values = SMALL | {key.replace("__", "."): value for key, value in overrides.items()}
    return [*COMMAND, *flags, *(f"--config.{key}={value}" for key, value in values.items())]


@pytest.mark.parametrize(
    "flags, status, words",
    [
        (["--topology=v5e:4x4", "--batch_size_per_chip=many"], 2, "--batch_size_per_chip=many"),
        (["--topology=v4-127"], 1, "the nearest is v4-128"),
    ],
)
def test_mistakes(flags, status, words):
    finished = runs.run([*COMMAND, *flags])
    assert finished.returncode == status
    assert words in one_sentence(finished.returncode, finished.stderr)


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "AUTO", "²"])
def test_a_batch_a_chip_that_is_none(given):
    with pytest.raises(cli.UsageError, match="must be auto, or 1 or more"):
        compile_check._batch_size_per_chip(given)
    assert compile_check._batch_size_per_chip("auto") is None
    assert compile_check._batch_size_per_chip("12") == 12


@pytest.mark.parametrize(
    "overrides, stage, words",
    [
        ({"mesh.model": 3}, 1, "config.mesh"),
        ({"train.batch_size": 6, "train.gradient_accumulation_steps": 4}, 1, "batch_size is 6"),
        ({}, 2, "--stage is 2; this config has the stages 1"),
    ],
)
def test_what_cannot_be_compiled(overrides, stage, words):
    topology = topologies.find("v5e:1x1")
    with pytest.raises(UserError, match=words):
        compile_check.compile_step(small_config(**overrides), topology, jax.devices()[:1], stage)


def test_the_abstract_batch_is_the_pipelines():
    config = small_config()
    trainer = Trainer.from_config(config, jax.devices()[:1])
    (stage,) = trainer.stages
    abstract = trainer.abstract_batch(stage)
    real = random_batch(0, batch_size=stage.batch_size)
    assert {k: (v.shape, v.dtype) for k, v in abstract.items()} == {
        k: (v.shape, v.dtype) for k, v in real.items()
    }
    assert {v.sharding for v in abstract.values()} == {trainer.layout.batch}


@pytest.mark.parametrize(
    "said, needed",
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (1.50T) exceeds available HBM (30.75G).",
            1.5 * 2**40,
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 20.16G of 15.75G hbm. Exceeded hbm capacity by 4.41G.",
            20.16 * GIB,
        ),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 20M of 16M.", None),
        ("INTERNAL: Used 20.16G of 15.75G hbm.", None),
    ],
)
def test_what_the_compiler_says_of_memory(said, needed):
    assert needed_bytes(said) == (needed and int(needed))


class FakeCompiler:
    """Of steps that take a fixed part and a part a sequence; the compiler's own limit."""

    def __init__(self, monkeypatch, topology, fixed, a_sequence):
        self.topology, self.fixed, self.a_sequence = topology, fixed, a_sequence
        monkeypatch.setattr(compile_check, "compile_step", self.compile_step)

    def compile_step(self, config, topology, devices, stage_number):
        size = config.train.batch_size // topology.num_chips
        temporary = int(size * self.a_sequence)
        total = self.fixed + temporary
        text = "" if total > topology.chip.hbm_limit_bytes else "program"
        return None, Compiled(text, self.fixed, temporary, total, 1.0)


@pytest.mark.parametrize(
    "fixed_gib, a_sequence_gib, expected",
    [
        (4, 0.1, 112),  # 117 would fit.
        (4, 0.18, 64),
        (4, 0.011, 1024),
        (0.1, 0.000001, 14680064),
        (4, 11, 1),
        (4, 12, 1),  # Not even one does.
    ],
)
def test_auto_finds_the_largest_with_few_compilations(
    monkeypatch, fixed_gib, a_sequence_gib, expected
):
    topology = topologies.find("v5e:1x1")
    FakeCompiler(monkeypatch, topology, int(fixed_gib * GIB), a_sequence_gib * GIB)
    size, tried = compile_check.largest_that_fits(
        small_config(), topology, jax.devices()[:1], stage_number=1
    )
    assert size == expected
    assert tried[size].fits == (fixed_gib + a_sequence_gib <= 15.75)
    assert len(tried) <= 4
    if tried[size].fits and size < 14680064:
        above = min(tried_size for tried_size in tried if tried_size > size)
        assert not tried[above].fits and above <= max(1.25 * size, size + 1)


def test_auto_respects_gradient_accumulation(monkeypatch):
    topology = topologies.find("v5e:1x1")
    FakeCompiler(monkeypatch, topology, 4 * GIB, 0.1 * GIB)
    config = small_config(**{"train.gradient_accumulation_steps": 3})
    size, tried = compile_check.largest_that_fits(config, topology, jax.devices()[:1], 1)
    # Three times 32: the next is three times 40.
    assert size == 96
    assert all(tried_size % 3 == 0 for tried_size in tried)


def test_a_batch_a_chip_is_that_of_every_stage():
    config = small_config()
    config.train.stages[0].batch_size = 48
    sized = compile_check.with_batch_size_per_chip(config, 6, topologies.find("v3-32"))
    # 16 chips, 32 devices.
    assert (sized.train.batch_size, sized.train.stages[0].batch_size) == (96, 0)
    assert config.train.stages[0].batch_size == 48


def test_costliest_lines():
    root = str(compile_check._PROJECT)

    def operation(cycles, source, kernel=None):
        return Operation("", "fusion", cycles, 2, 0, "", source, (), kernel)

    found = compile_check.costliest(
        [
            operation(100, f"{root}/bert_jax/models/attention.py:40"),
            operation(250, "/python/lib/site-packages/optax/update.py:42"),
            operation(200, f"{root}/bert_jax/models/attention.py:40"),
            operation(0, f"{root}/bert_jax/models/flash.py:9", Kernel(bytes_accessed=273_000_000)),
            operation(50, ""),
            *(operation(1, f"{root}/bert_jax/models/bert.py:{i}") for i in range(10)),
        ],
        topologies.find("v5e:1x1"),
    )
    assert len(found) == 10
    # A third of a millisecond, twice, of 1.5 GHz.
    assert found[0]["source"] == "bert_jax/models/flash.py:9"
    assert found[0]["cycles"] == 1_000_000
    assert [(line["source"], line["cycles"]) for line in found[1:4]] == [
        ("bert_jax/models/attention.py:40", 600),
        ("optax/update.py:42", 500),
        ("not known", 100),
    ]
    assert found[1]["share"] == pytest.approx(600 / 1_001_220)


@needs_libtpu
def test_a_step_of_a_slice(tmp_path):
    output, text = tmp_path / "out.json", tmp_path / "step.hlo"
    flags = ("--topology=v2-8", f"--output={output}", f"--hlo_output={text}")
    finished = runs.run(command(*flags, "--batch_size_per_chip=4"))
    assert finished.returncode == 0 and finished.stderr == "", finished.stderr
    assert "not a measurement" in finished.stdout and "all-reduce" in finished.stdout
    assert "bert_jax/models/" in finished.stdout and "latency" in finished.stdout
    found = json.loads(output.read_text())
    # Four chips, of two devices each.
    assert found["chips"] == 4 and found["mesh"]["data"] == 8
    assert found["batch_size"] == 16 and found["batch_size_per_chip"] == 4
    assert found["fits"] and found["hbm_limit_bytes"] == 2 * int(7.48 * GIB)
    total = found["hbm_argument_bytes"] + found["hbm_temporary_bytes"]
    assert found["hbm_total_bytes"] == total < 0.1 * GIB
    # Parameters and both moments, on each of the two devices; and tiles are not filled.
    assert found["hbm_argument_bytes"] > 2 * 3 * 4 * 98 * 32
    assert found["collectives"]["all-reduce"]["count"] >= 1
    # At least the gradients of the word embeddings, bfloat16 or float32.
    assert found["collectives"]["all-reduce"]["bytes"] > 2 * 98 * 32
    seconds = found["estimated_step_seconds"]
    assert 0 < seconds < 0.1 and found["compile_seconds"] > 0
    told = found["estimate"]
    parts = ("compute_seconds", "kernel_seconds", "exposed_collective_seconds")
    assert seconds == pytest.approx(sum(told[part] for part in parts))
    rate = found["estimated_sequences_per_second_per_chip"]
    assert rate == pytest.approx(4 / seconds)
    # DESIGN's formula: S 16, L 1, H 32, F 40, P 4, V 98.
    layers = 2 * 16 * (4 * 32**2 + 2 * 32 * 40) + 4 * 16**2 * 32
    flops = 3 * (layers + 2 * 4 * (32**2 + 32 * 98) + 2 * 32**2)
    assert found["estimated_mfu"] == pytest.approx(rate * flops / 45e12)
    assert 1 <= len(found["costliest_operations"]) <= 10
    assert found["config"]["train"]["batch_size"] == 16
    assert text.read_text().startswith("HloModule jit_")


@needs_libtpu
@pytest.mark.parametrize("sharding", ["dp", "tp"])
def test_a_step_with_the_attention_kernel(tmp_path, sharding):
    output = tmp_path / "out.json"
    # So many sequences that the keys of all their masks would not lie on the chip at once.
    flags = ("--topology=v5e:2x2", f"--output={output}", "--batch_size_per_chip=1100")
    changes = {
        "dtype": "bfloat16",
        "sharding": sharding,
        "max_replicated_share": 0.5,
        "mesh__model": 2 if sharding == "tp" else 1,
        "model__hidden_size": 256,
        "model__max_position_embeddings": 128,
        "train__stages[0]__max_seq_length": 128,
    }
    finished = runs.run(command(*flags, **changes))
    assert finished.returncode == 0 and finished.stderr == "", finished.stderr
    found = json.loads(output.read_text())
    assert found["estimate"]["kernel_seconds"] > 0
    assert found["estimate"]["kernels_without_cost"] == 0


@needs_libtpu
def test_too_large_for_the_chip(tmp_path):
    output = tmp_path / "out.json"
    flags = ("--topology=v5e:1x1", f"--output={output}")
    # 2.9 GB of embeddings, as often as there are moments and gradients.
    finished = runs.run(command(*flags, model__vocab_size=60_000_000))
    said = one_sentence(finished.returncode, finished.stderr)
    assert finished.returncode == 1 and "GiB more than a v5e has" in said
    found = json.loads(output.read_text())
    assert found["fits"] is False
    assert found["hbm_total_bytes"] > found["hbm_limit_bytes"] == int(15.75 * GIB)
    assert found["hbm_argument_bytes"] > 3 * 4 * 32 * 60e6
    assert found["estimated_step_seconds"] is None and found["estimated_mfu"] is None
    assert "too much by" in finished.stdout
