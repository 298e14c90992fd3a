"""A model with its objective, optimizer and mesh, and the compiled steps."""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh
from ml_collections import ConfigDict

from bert_jax.base.batch import BatchFields
from bert_jax.base.errors import UserError
from bert_jax.models import BertConfig, gpu_attention
from bert_jax.models.layers import matrices
from bert_jax.objectives.objective import SEQUENCE_SUMS, Batch, Metrics, Objective
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.parallel.chips import chip_of, peak_flops_per_second
from bert_jax.parallel.compiler_options import compiler_options
from bert_jax.parallel.sharding import Layout
from bert_jax.training.gathering import copied_bytes, make_gather
from bert_jax.training.optimizer import Schedule, make_optimizer
from bert_jax.training.schedule import make_schedule, make_weight_decay
from bert_jax.training.stages import Stage
from bert_jax.training.state import TrainState, abstract_params, init_params, state_shardings
from bert_jax.training.step import make_train_step

# Number of batches that are on the devices before they are needed.
DEVICE_PREFETCH = 2
# The limit of a container.
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
# A usual step needs fewer bytes than this per token and hidden unit of each layer. A step is
# compiled in advance, which takes seconds, only if by this estimate it might not fit.
_MAX_BYTES = 400
# Fields of `BertConfig` that make these chips faster, by the estimates in docs/hardware.md.
_FASTER_ON = {
    "v5p": {"joins_heads": True},
    "v6e": {"joins_heads": True, "stores_activations": True},
}


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Everything about a run that does not change from step to step.

    Attributes:
      schedule: The learning rate of a step, which counts from 0.
      shardings: The sharding of each array of the state.
      seed: The seed of the initial weights and of dropout.
      accumulation_steps: The number of microbatches that a batch is divided into.
      overlap_collectives: See `config.overlap_collectives`.
      fields: The arrays of a batch, from which `abstract_batch` takes shapes and dtypes. They are
        needed only to compile without data.
      frozen: Parameters that the objective reads but that are not trained. They are an argument
        of the steps, are never donated and are in no checkpoint.
    """

    model: nn.Module
    objective: Objective
    layout: Layout
    stages: Sequence[Stage]
    optimizer: optax.GradientTransformation
    schedule: Schedule
    shardings: TrainState
    seed: int
    accumulation_steps: int
    overlap_collectives: bool
    fields: BatchFields
    frozen: Any

    @classmethod
    def create(
        cls,
        config: ConfigDict,
        layout: Layout,
        model: nn.Module,
        objective: Objective,
        stages: Sequence[Stage],
        *,
        fields: BatchFields | None = None,
        frozen: Any = None,
        scaling: optax.GradientTransformation | None = None,
        accumulation_steps: int | None = None,
    ) -> Self:
        """Builds the trainer of a validated config of pre-training or fine-tuning.

        Args:
          layout, model: Made by `make_layout` and with `make_model_config`.
          scaling: Scales the updates, if layers have learning rates of their own.
          accumulation_steps: By default, that of the config.
        """
        layout = layout.chosen_for(copied_bytes(model))
        schedule = make_schedule(stages)
        optimizer = make_optimizer(
            config.optimizer,
            schedule,
            make_weight_decay(stages),
            config.model.vocab_size,
            scaling,
            matrices(abstract_params(model)),
        )
        return cls(
            model=model,
            objective=objective,
            layout=layout,
            stages=stages,
            optimizer=optimizer,
            schedule=schedule,
            shardings=state_shardings(model, optimizer, layout),
            seed=config.seed,
            accumulation_steps=accumulation_steps or config.train.gradient_accumulation_steps,
            overlap_collectives=config.overlap_collectives,
            fields=fields or {},
            frozen=frozen or {},
        )

    @property
    def model_config(self) -> BertConfig:
        return self.model.config

    @functools.cached_property
    def compiled_train_step(self) -> Any:
        """The jitted train step: (state, batch, frozen) -> (state, metrics)."""
        train_step = make_train_step(
            self.model,
            self.optimizer,
            self.schedule,
            self.objective,
            seed=self.seed,
            accumulation_steps=self.accumulation_steps,
            gather=make_gather(self.model, self.layout),
        )
        rows, replicated = self.layout.batch, self.layout.replicated
        devices = list(self.mesh.devices.flat)
        # jax.jit with shardings was formerly called pjit.
        return jax.jit(
            self.layout.in_scope()(train_step),
            in_shardings=(self.shardings, rows, replicated),
            out_shardings=(self.shardings, replicated),
            donate_argnums=0,
            compiler_options=compiler_options(devices) if self.overlap_collectives else {},
        )

    @functools.cached_property
    def _compiled_eval_step(self) -> Any:
        def eval_step(params: Any, batch: Batch, frozen: Any, operands: Sequence[Any]) -> Any:
            return self.objective.evaluate(self.model, params, batch, frozen, *operands)

        rows, replicated = self.layout.batch, self.layout.replicated
        return jax.jit(
            self.layout.in_scope()(eval_step),
            in_shardings=(self.shardings.params, rows, replicated, replicated),
            out_shardings=replicated,
        )

    def with_model(self, keys: tuple[tuple[str, Any], ...]) -> Self:
        """Returns the trainer of the same weights in a model with other values of some keys."""
        if not keys:
            return self
        if keys not in self._variants:
            config = dataclasses.replace(self.model_config, **dict(keys))
            self._variants[keys] = dataclasses.replace(self, model=self.model.clone(config=config))
        return self._variants[keys]

    @functools.cached_property
    def _variants(self) -> dict[tuple[tuple[str, Any], ...], Self]:
        """The results of `with_model`, which compile their steps once."""
        return {}

    def compile_train_step(self, state: TrainState, batch: Batch) -> None:
        """Compiles the train step for the shapes of a batch, so that `train_step` need not."""
        # jax.jit keeps the result.
        self.compiled_train_step.lower(state, batch, self._placed_frozen).compile()

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """Takes one step; the given state is donated. Compiled once for each batch shape."""
        return self.compiled_train_step(state, batch, self._placed_frozen)

    def eval_step(self, params: Any, batch: Batch, *operands: Any) -> Any:
        """Returns the result of the objective's `evaluate`, replicated on all devices."""
        return self._compiled_eval_step(params, batch, self._placed_frozen, operands)

    @functools.cached_property
    def _placed_frozen(self) -> Any:
        """The frozen parameters on the devices, where they are moved once."""
        return jax.device_put(self.frozen, self.layout.replicated)

    @property
    def mesh(self) -> Mesh:
        return self.layout.mesh

    def init_state(self) -> TrainState:
        """Creates the state of step 0, with weights from the seed, each on its devices."""
        return self._compiled_init()

    @functools.cached_property
    def _compiled_init(self) -> Any:
        def create() -> TrainState:
            return self._create_state(nn.unbox(init_params(self.model, self.seed)))

        # On CPU, LLVM's level 2 takes a second less than level 3 and gives the same bits.
        level = "xla_backend_optimization_level"
        is_default = level not in os.environ.get("XLA_FLAGS", "")
        is_cpu = self.mesh.devices.flat[0].platform == "cpu"
        options = {level: 2} if is_cpu and is_default else {}
        return jax.jit(create, out_shardings=self.shardings, compiler_options=options)

    def state_of(self, params: Any) -> TrainState:
        """Creates the state of step 0 from given weights (host arrays), with zero moments."""
        placed = jax.device_put(params, self.shardings.params)
        return jax.jit(self._create_state, out_shardings=self.shardings)(placed)

    def abstract_state(self) -> TrainState:
        """Returns shapes, dtypes and shardings of the state, for restoring a checkpoint."""
        params = nn.unbox(abstract_params(self.model))
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            jax.eval_shape(self._create_state, params),
            self.shardings,
        )

    def abstract_frozen(self) -> Any:
        """Returns shapes, dtypes and shardings of the frozen parameters."""
        replicated = self.layout.replicated
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated), self.frozen
        )

    def _create_state(self, params: Any) -> TrainState:
        return TrainState.create(params, self.optimizer)

    def abstract_batch(self, stage: Stage) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes, dtypes and shardings of the batches of a pre-training stage."""
        sizes = stage.sizes(stage.batch_size)
        return {
            name: jax.ShapeDtypeStruct(field.shape(*sizes), field.dtype, sharding=self.layout.batch)
            for name, field in self.fields.items()
        }

    def put(self, batches: Iterable[dict[str, np.ndarray]]) -> Iterator[dict[str, jax.Array]]:
        """Moves batches to the devices, a few ahead of their use."""
        ready = []
        for batch in batches:
            ready.append(self.layout.put_batch(batch))
            if len(ready) > DEVICE_PREFETCH:
                yield ready.pop(0)
        yield from ready

    def flops_per_sequence(self, stage: Stage, mean_square: float | None = None) -> float:
        """Computes the analytic FLOPs of training on one sequence; see `Objective.flops`."""
        sizes = stage.max_seq_length, stage.max_predictions_per_seq
        return self.objective.flops(self.model, *sizes, mean_square)

    def flops_per_step(self, stage: Stage) -> float:
        """Computes the analytic FLOPs of one train step over all devices."""
        return stage.batch_size * self.flops_per_sequence(stage)

    def work(self, stage: Stage, metrics: Metrics) -> dict[str, float]:
        """Returns the `sequences`, `tokens` and `flops` of a finished step.

        Padding counts, except in rows that several sequences share.
        """
        rows = stage.batch_size
        if SEQUENCE_SUMS[0] in metrics:
            sequences, tokens, squares = (metrics[name] for name in SEQUENCE_SUMS)
            mean = dataclasses.replace(
                stage,
                max_seq_length=tokens / sequences,
                max_predictions_per_seq=rows * stage.max_predictions_per_seq / sequences,
            )
            flops = sequences * self.flops_per_sequence(mean, squares / sequences)
        else:
            sequences, tokens, flops = rows, rows * stage.max_seq_length, self.flops_per_step(stage)
        return {"sequences": sequences, "tokens": tokens, "flops": flops}

    def flops_until(self, step: float) -> float:
        """Computes the analytic FLOPs of all train steps before `step`."""
        return sum(
            min(max(step - stage.first_step, 0), stage.num_steps) * self.flops_per_step(stage)
            for stage in self.stages
        )

    def peak_flops_per_second(self) -> float | None:
        """Returns the bf16 peak of all devices of the mesh, or None if it is unknown."""
        peak = peak_flops_per_second(self.mesh.devices.flat[0])
        return None if peak is None else peak * self.mesh.devices.size


def make_layout(config: ConfigDict, devices: Sequence[jax.Device] | None = None) -> Layout:
    """Arranges devices, all by default, in the mesh of a config."""
    widths = config.model.hidden_size, config.model.embedding_size
    mesh = mesh_lib.make_mesh(config.mesh, devices, sharding=config.sharding, widths=widths)
    return Layout.create(mesh, config.sharding)


def make_model_config(config: ConfigDict, layout: Layout) -> BertConfig:
    """Returns `config.model` with what else decides how the model is computed on the devices."""
    device = layout.mesh.devices.flat[0]
    kernel = _attention_kernel(device)
    chip = chip_of(device)
    return BertConfig(
        **config.model,
        sinusoidal_positions=config.sinusoidal_positions,
        dtype=jnp.dtype(config.dtype),
        remat=config.remat,
        fused_attention=kernel if config.fused_attention else "",
        **_FASTER_ON.get(chip.name if chip else "", {}),
    )


def fit_to_devices(config: ConfigDict) -> None:
    """Changes the mesh of a stored config for the devices of this machine, to evaluate its model.

    There may be fewer or other devices than those of the run. If the run sharded its parameters,
    which may be larger than the memory of a device, they are sharded over as many devices as their
    widths allow.
    """
    devices, fsdp = jax.devices(), 1
    if config.sharding != "dp":
        per_slice = len(devices) // mesh_lib.num_slices(devices)
        width = config.model.hidden_size
        others = config.model.embedding_size, round(width * config.model.generator_size)
        fsdp = math.gcd(per_slice, width, *others)
    config.sharding = "auto"
    config.mesh.update(data=-1, fsdp=fsdp, model=1)


def _attention_kernel(device: jax.Device) -> str:
    """Returns the platform of a device that can run the attention kernel, else an empty string."""
    if device.platform == "tpu":
        # On TPU v2 and v3 the compiler of Pallas kernels aborts.
        return "" if device.device_kind in ("TPU v2", "TPU v3") else "tpu"
    if device.platform == "gpu":
        # Older GPUs of NVIDIA have no bfloat16 products. AMD's capability is a name ("gfx90a").
        capability = device.compute_capability
        is_new = capability[0].isdigit() and float(capability) >= 8
        return "gpu" if is_new and gpu_attention.can_be_lowered() else ""
    return ""


def check_memory(trainer: Trainer, accumulation_steps: int) -> None:
    """Checks that the train step of every stage fits in the memory of a CPU.

    The system would kill the process; GPU and TPU report an error instead.
    """
    if trainer.mesh.devices.flat[0].platform != "cpu":
        return
    limit, config = _memory_bytes(), trainer.model_config
    for stage in trainer.stages:
        tokens = stage.batch_size * stage.max_seq_length / accumulation_steps / jax.process_count()
        if _MAX_BYTES * tokens * config.hidden_size * config.num_hidden_layers < limit:
            continue
        arguments = trainer.abstract_batch(stage), trainer.abstract_frozen()
        train_step = trainer.with_model(stage.model_keys).compiled_train_step
        step = train_step.lower(trainer.abstract_state(), *arguments).compile()
        sizes, devices = step.memory_analysis(), jax.local_device_count()
        held, temporary = sizes.argument_size_in_bytes, sizes.temp_size_in_bytes
        if (needed := (held + temporary) * devices) > limit:
            fitting = max(int(stage.batch_size * (limit / devices - held) / temporary), 0)
            raise UserError(
                f"a step of {stage.batch_size:,} sequences of {stage.max_seq_length} tokens needs "
                f"{needed / 2**30:.1f} GiB of memory, but this machine has {limit / 2**30:.1f} "
                f"GiB, which is enough for about {fitting:,} sequences: set a larger "
                "config.train.gradient_accumulation_steps or, in a new run, a smaller "
                "config.train.batch_size"
            )


def _memory_bytes() -> int:
    """Returns the memory of this machine, or of the container that the process runs in."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        # The file holds "max" if there is no limit.
        limit = min(limit, int(_CGROUP_LIMIT.read_text()))
    return limit
