"""Steps that do not compile: their memory, and messages about the config."""

import jax
import pytest

from bert_jax.base.errors import UserError
from bert_jax.tpu import topologies
from bert_jax.tpu.compilation import compile_step, needed_bytes
from bert_jax.training.stages import numbered_stage
from tests.small import small_config

GIB = 2**30


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
def test_needed_bytes_of_compiler_messages(said, needed):
    assert needed_bytes(said) == (needed and int(needed))


@pytest.mark.parametrize(
    "overrides, stage, words",
    [
        ({"mesh.model": 3}, 1, "config.mesh"),
        ({"train.batch_size": 6, "train.gradient_accumulation_steps": 4}, 1, "batch_size is 6"),
        ({}, 2, "--stage is 2; this config has the stages 1"),
    ],
)
def test_configs_that_cannot_be_compiled(overrides, stage, words):
    topology = topologies.find("v5e:1x1")
    config = small_config(**overrides)
    with pytest.raises(UserError, match=words):
        compile_step(config, topology, jax.devices()[:1], numbered_stage(config, stage))
