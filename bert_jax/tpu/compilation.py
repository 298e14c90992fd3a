"""Compiles a train step for devices that may be absent, and measures its memory."""

import dataclasses
import math
import re
import time
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.commands.read_model import read_teacher
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.pretraining.build import make_trainer
from bert_jax.tpu.topologies import Topology
from bert_jax.training.stages import Stage
from bert_jax.training.trainer import Trainer

_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
# The TPU compiler's messages with the size of a program that is too large.
_NEEDED = (
    re.compile(r"Used ([\d.]+)([KMGTP]?) of [\d.]+[KMGTP]? hbm"),
    re.compile(r"\(([\d.]+)([KMGTP]?)\) exceeds available HBM"),
)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled train step. Memory is per chip.

    Attributes:
      text: The program as the device runs it; empty if it does not fit.
      argument_bytes: Memory of state and batch.
      temporary_bytes: All other memory: activations, gradients, results that do not replace
        an argument, and the program itself.
      sharding: `Layout.description`.
      flops: The FLOPs of a step; see `Objective.flops`.
      state_bytes: The size of the whole state, as a checkpoint holds it.
    """

    text: str
    argument_bytes: int
    temporary_bytes: int
    compile_seconds: float
    mesh: dict[str, int]
    sharding: str
    flops: float
    state_bytes: int

    @property
    def fits(self) -> bool:
        return bool(self.text)

    @property
    def total_bytes(self) -> int:
        return self.argument_bytes + self.temporary_bytes


def compile_step(
    config: ConfigDict, topology: Topology, devices: list[jax.Device], stage: Stage
) -> Compiled:
    """Compiles the train step of a stage of pre-training."""
    trainer = make_trainer(config, devices, read_teacher(config))
    hosts = len({device.process_index for device in devices})
    config_lib.check_batch(config, num_data_shards(trainer.mesh), hosts)
    return compile_trainer(trainer, trainer.abstract_batch(stage), topology, stage)


def compile_trainer(trainer: Trainer, batch: Any, topology: Topology, stage: Stage) -> Compiled:
    """Compiles the train step of a trainer for an abstract batch of a stage."""
    arguments = trainer.abstract_state(), batch, trainer.abstract_frozen()
    started = time.monotonic()
    try:
        train_step = trainer.with_model(stage.model_keys).compiled_train_step
        compiled = train_step.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        total_bytes = needed_bytes(str(error))
        if total_bytes is None:
            raise
        text = ""
        argument_bytes = sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(arguments)
        )
        temporary_bytes = max(0, total_bytes - argument_bytes)
    else:
        text, memory = compiled.as_text(), compiled.memory_analysis()
        argument_bytes = memory.argument_size_in_bytes
        temporary_bytes = (
            memory.temp_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.generated_code_size_in_bytes
        )
    return Compiled(
        text,
        argument_bytes * topology.chip.devices,
        temporary_bytes * topology.chip.devices,
        time.monotonic() - started,
        dict(trainer.mesh.shape),
        trainer.layout.description,
        trainer.flops_per_step(stage),
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arguments[0])),
    )


def needed_bytes(error: str) -> int | None:
    """Finds the bytes that a refused program needs; None if the error is not about memory."""
    if "RESOURCE_EXHAUSTED" in error:
        for pattern in _NEEDED:
            if found := pattern.search(error):
                return int(float(found[1]) * _BYTES[found[2]])
    return None


def gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB"
