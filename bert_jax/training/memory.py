"""Refuses a batch that the memory of a CPU cannot hold; the system would kill the process."""

import contextlib
import os
from pathlib import Path

import jax

from bert_jax.base.errors import UserError
from bert_jax.training.trainer import Trainer

# The limit of a container.
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
# More bytes per token and hidden unit of a layer than a usual step needs. Only a step that might
# need all of the memory by this rule is compiled in advance, which takes seconds.
_MOST_BYTES = 400


def check_memory(trainer: Trainer, accumulation_steps: int) -> None:
    """Checks that the train step of every stage fits. GPU and TPU report that they are full.

    Raises:
      UserError: A step needs more memory than the machine has.
    """
    if trainer.mesh.devices.flat[0].platform != "cpu":
        return
    limit, config, refused = _memory_bytes(), trainer.model_config, []
    for stage in trainer.stages:
        tokens = stage.batch_size * stage.max_seq_length / accumulation_steps / jax.process_count()
        if _MOST_BYTES * tokens * config.hidden_size * config.num_hidden_layers < limit:
            continue
        arguments = trainer.abstract_batch(stage), trainer.abstract_frozen()
        step = trainer.compiled_train_step.lower(trainer.abstract_state(), *arguments).compile()
        sizes, devices = step.memory_analysis(), jax.local_device_count()
        held, temporary = sizes.argument_size_in_bytes, sizes.temp_size_in_bytes
        if (needed := (held + temporary) * devices) > limit:
            fitting = max(int(stage.batch_size * (limit / devices - held) / temporary), 0)
            refused.append((fitting, needed, stage))
    if refused:
        fitting, needed, stage = min(refused, key=lambda entry: entry[0])
        raise UserError(
            f"a step of {stage.batch_size:,} sequences of {stage.max_seq_length} tokens needs "
            f"{needed / 2**30:.1f} GiB of memory, but this machine has {limit / 2**30:.1f} GiB, "
            f"which is enough for about {fitting:,} sequences: set a smaller "
            "config.train.batch_size or a larger config.train.gradient_accumulation_steps"
        )


def _memory_bytes() -> int:
    """Returns the memory of this machine, or of the container that the process runs in."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        # The file holds "max" if there is no limit.
        limit = min(limit, int(_CGROUP_LIMIT.read_text()))
    return limit
