"""Compiles a train step for devices that may be absent, and measures its memory."""

import dataclasses
import math
import re
import time
from typing import Self

import jax

from bert_jax.training.stages import Stage
from bert_jax.training.trainer import Trainer

_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
# How the TPU compiler words the size of a program that is too large.
_NEEDED = (
    re.compile(r"Used ([\d.]+)([KMGTP]?) of [\d.]+[KMGTP]? hbm"),
    re.compile(r"\(([\d.]+)([KMGTP]?)\) exceeds available HBM"),
)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled train step.

    Attributes:
      text: The program as the device runs it; empty if it does not fit.
      argument_bytes: Device memory of state and batch.
      temporary_bytes: All other memory: activations, gradients, results that do not replace
        an argument, and the program itself.
      total_bytes: Their sum; if the program does not fit, the compiler's number.
      compile_seconds: The time of tracing and compiling.
    """

    text: str
    argument_bytes: int
    temporary_bytes: int
    total_bytes: int
    compile_seconds: float

    @property
    def fits(self) -> bool:
        return bool(self.text)

    def on(self, devices: int) -> Self:
        """Returns a copy with the bytes of `devices` devices together."""
        names = ("argument_bytes", "temporary_bytes", "total_bytes")
        return dataclasses.replace(self, **{name: devices * getattr(self, name) for name in names})


def compile_train_step(trainer: Trainer, stage: Stage) -> Compiled:
    """Compiles the step of one stage for the devices of the trainer's mesh.

    Raises:
      jax.errors.JaxRuntimeError: The compiler failed for another reason than memory.
    """
    arguments = trainer.abstract_state(), trainer.abstract_batch(stage), trainer.frozen
    started = time.monotonic()
    try:
        compiled = trainer.compiled_train_step.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        total_bytes = needed_bytes(str(error))
        if total_bytes is None:
            raise
        argument_bytes = sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(arguments)
        )
        temporary_bytes = max(0, total_bytes - argument_bytes)
        seconds = time.monotonic() - started
        return Compiled("", argument_bytes, temporary_bytes, total_bytes, seconds)
    seconds = time.monotonic() - started
    memory = compiled.memory_analysis()
    argument_bytes = memory.argument_size_in_bytes
    temporary_bytes = (
        memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    total_bytes = argument_bytes + temporary_bytes
    return Compiled(compiled.as_text(), argument_bytes, temporary_bytes, total_bytes, seconds)


def needed_bytes(error: str) -> int | None:
    """Returns the device memory that a refused program needs, from the compiler's message.

    Returns None if the message is not about memory.
    """
    if "RESOURCE_EXHAUSTED" in error:
        for pattern in _NEEDED:
            if found := pattern.search(error):
                return int(float(found[1]) * _BYTES[found[2]])
    return None


def gib(size: int) -> str:
    """Formats a number of bytes."""
    return f"{size / 2**30:,.2f} GiB"
