"""What memory cannot hold is refused; the attention kernel of a device; the first state; FLOPs."""

import dataclasses
import functools
import sys
import warnings
from types import SimpleNamespace

import flax.linen as nn
import jax
import pytest
from jax.experimental import pallas
from jax.sharding import AbstractDevice, AbstractMesh

from bert_jax.base.errors import UserError
from bert_jax.models import gpu_attention
from bert_jax.objectives.flops import pretraining_flops_per_sequence
from bert_jax.objectives.objective import SEQUENCE_SUMS
from bert_jax.objectives.terms import make_terms
from bert_jax.pretraining.build import make_trainer
from bert_jax.training import trainer as trainer_lib
from bert_jax.training.state import init_params
from tests.runs import assert_same_bits
from tests.small import LENGTH, PREDICTIONS, small_config


def test_a_batch_that_does_not_fit_is_refused(monkeypatch):
    trainer = make_trainer(small_config(**{"model.num_hidden_layers": 1}), jax.devices()[:1])
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)
    stage = trainer.stages[-1]
    arguments = trainer.abstract_batch(stage), trainer.abstract_frozen()
    step = trainer.compiled_train_step.lower(trainer.abstract_state(), *arguments).compile()
    sizes = step.memory_analysis()
    held, temporary = sizes.argument_size_in_bytes, sizes.temp_size_in_bytes
    # More than a float32 for each hidden unit of each token.
    width = trainer.model_config.hidden_size
    assert temporary > 4 * stage.batch_size * stage.max_seq_length * width
    # The step is compiled in any case.
    monkeypatch.setattr(trainer_lib, "_MAX_BYTES", 10**9)
    monkeypatch.setattr(trainer_lib, "_memory_bytes", lambda: held + temporary)
    trainer_lib.check_memory(trainer, 1)
    monkeypatch.setattr(trainer_lib, "_memory_bytes", lambda: held + temporary // 2)
    message = rf"a step of {stage.batch_size} .* about {stage.batch_size // 2} sequences: set"
    with pytest.raises(UserError, match=message):
        trainer_lib.check_memory(trainer, 1)


def test_the_memory_is_that_of_the_machine_or_its_container(monkeypatch, tmp_path):
    monkeypatch.setattr(trainer_lib, "_CGROUP_LIMIT", tmp_path / "memory.max")
    total = trainer_lib._memory_bytes()
    assert total > 2**28
    for text, limit in (("max\n", total), (f"{total // 2}\n", total // 2), (f"{2 * total}", total)):
        (tmp_path / "memory.max").write_text(text)
        assert trainer_lib._memory_bytes() == limit


def test_initial_weights_do_not_depend_on_the_level_of_optimization(monkeypatch):
    # Without a level in it, as users have it. No other test has this seed and shares its programs.
    monkeypatch.setenv("XLA_FLAGS", "")
    values = {"model.num_hidden_layers": 1, "objective.terms": ("masked_lm",)}
    values |= {"objective.weights": (1.0,), "data.rows": "segments"}
    trainer = make_trainer(small_config(seed=51, **values), jax.devices()[:1])

    def create():
        return nn.unbox(init_params(trainer.model, trainer.seed))

    params = jax.jit(create, compiler_options={"xla_backend_optimization_level": 3})()
    assert_same_bits(trainer.init_state().params, params)


@pytest.mark.parametrize(
    ("platform", "kind", "capability", "kernel"),
    [
        ("tpu", "TPU v3", "", ""),
        ("tpu", "TPU v5 lite", "", "tpu"),
        ("gpu", "NVIDIA T4", "7.5", ""),
        ("gpu", "NVIDIA A100", "8.0", "gpu"),
        ("gpu", "NVIDIA B200", "10.0", "gpu"),
        ("gpu", "AMD Instinct MI250X", "gfx90a", ""),
        ("cpu", "cpu", "", ""),
    ],
)
def test_the_device_chooses_the_attention_kernel(monkeypatch, platform, kind, capability, kernel):
    monkeypatch.setattr(gpu_attention, "can_be_lowered", lambda: True)
    device = SimpleNamespace(platform=platform, device_kind=kind, compute_capability=capability)
    assert trainer_lib._attention_kernel(device) == kernel


def _without_the_module(monkeypatch):
    monkeypatch.delattr(pallas, "triton", raising=False)
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)


def _without_a_rule(monkeypatch):
    def kernel(*arguments, **constants):
        raise NotImplementedError("no lowering of dot\nfor cuda")

    monkeypatch.setattr(gpu_attention, "_backward_kernel", kernel)


@pytest.mark.parametrize(
    ("remove", "reason"),
    [(_without_the_module, "import of jax.experimental.pallas.triton"), (_without_a_rule, "dot$")],
)
def test_without_the_lowering_attention_has_no_kernel(monkeypatch, remove, reason):
    monkeypatch.setattr(
        gpu_attention, "can_be_lowered", functools.cache(gpu_attention.can_be_lowered.__wrapped__)
    )
    gpu = SimpleNamespace(platform="gpu", device_kind="NVIDIA H100", compute_capability="9.0")
    # jax 0.12 asks for a device; nothing is compiled for it.
    abstract = AbstractDevice(device_kind="NVIDIA H100", num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=abstract)):
        assert trainer_lib._attention_kernel(gpu) == "gpu"
        gpu_attention.can_be_lowered.cache_clear()
        remove(monkeypatch)
        with pytest.warns(UserWarning, match=f"without the kernel .* cannot lower it: .*{reason}"):
            assert trainer_lib._attention_kernel(gpu) == ""
        with warnings.catch_warnings(action="error"):
            assert trainer_lib._attention_kernel(gpu) == ""


def test_packed_rows_count_the_tokens_of_each_sequence():
    trainer = make_trainer(small_config(**{"data.max_pairs_per_row": 2}), jax.devices()[:1])
    (of_run,) = trainer.stages
    lengths = [16, 5, 11, 16]
    metrics = dict(zip(SEQUENCE_SUMS, (4, sum(lengths), sum(n**2 for n in lengths)), strict=True))
    work = trainer.work(dataclasses.replace(of_run, batch_size=3), metrics)
    assert (work["sequences"], work["tokens"]) == (4, 48)
    # Three rows of PREDICTIONS predictions.
    mean = 3 * PREDICTIONS / 4
    sizes = trainer.model_config, make_terms()
    expected = sum(pretraining_flops_per_sequence(*sizes, n, mean) for n in lengths)
    assert work["flops"] == pytest.approx(expected, rel=1e-12)
    # Padding counts in rows of one sequence.
    work = trainer.work(of_run, {})
    assert (work["sequences"], work["tokens"]) == (16, 16 * LENGTH)
    assert work["flops"] == trainer.flops_per_step(of_run)
