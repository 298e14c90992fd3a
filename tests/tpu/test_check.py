"""The search for the largest batch, with a fake compiler."""

import jax
import pytest

from bert_jax.tpu import check, topologies
from bert_jax.tpu.compilation import Compiled
from tests.small import small_config

GIB = 2**30


def fake_compiler(monkeypatch, fixed, a_sequence):
    """Compiles steps that need fixed memory plus memory for each sequence."""

    def compile_step(config, topology, devices, stage):
        temporary = int(config.train.batch_size // topology.num_chips * a_sequence)
        text = "" if fixed + temporary > topology.chip.hbm_limit_bytes else "program"
        return Compiled(text, fixed, temporary, 1.0, {}, "dp", 0.0, 0)

    monkeypatch.setattr(check, "compile_step", compile_step)


@pytest.mark.parametrize(
    "fixed_gib, a_sequence_gib, expected",
    [
        (4, 0.1, 112),  # 117 would fit.
        (4, 0.18, 64),
        (4, 0.011, 1024),
        (0.1, 0.000001, 14680064),
        (4, 11, 1),
        (4, 12, 1),  # Not even one fits.
    ],
)
def test_auto_finds_the_largest_with_few_compilations(
    monkeypatch, fixed_gib, a_sequence_gib, expected
):
    topology = topologies.find("v5e:1x1")
    fake_compiler(monkeypatch, int(fixed_gib * GIB), a_sequence_gib * GIB)
    size, tried = check.largest_that_fits(
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
    fake_compiler(monkeypatch, 4 * GIB, 0.1 * GIB)
    config = small_config(**{"train.gradient_accumulation_steps": 3})
    size, tried = check.largest_that_fits(config, topology, jax.devices()[:1], 1)
    # Three times 32; the next size is three times 40.
    assert size == 96
    assert all(tried_size % 3 == 0 for tried_size in tried)


def test_batch_size_per_chip_applies_to_every_stage():
    config = small_config()
    config.train.stages[0].batch_size = 48
    sized = check.with_batch_size_per_chip(config, 6, topologies.find("v3-32"))
    # 16 chips, 32 devices.
    assert (sized.train.batch_size, sized.train.stages[0].batch_size) == (96, 0)
    assert config.train.stages[0].batch_size == 48
