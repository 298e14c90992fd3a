"""Checks a config against the devices and the vocabulary, which are known only at run time."""

import math

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError


def check_vocabulary(config: ConfigDict, vocab_size: int, source: str) -> None:
    """Refuses a model whose embedding and vocabulary differ in size.

    On a device, an id beyond the embedding raises no error; the model would train on garbage.
    """
    if config.model.vocab_size != vocab_size:
        raise UserError(
            f"config.model.vocab_size is {config.model.vocab_size} but the vocabulary of "
            f"{source} has {vocab_size} entries; set --config.model.vocab_size={vocab_size}"
        )


def check_batch(config: ConfigDict, data_shards: int, num_processes: int) -> None:
    """Refuses batches that cannot be split evenly over the devices.

    Args:
      config: A validated config of pre-training or fine-tuning.
      data_shards: Product of the mesh axes that the batch is sharded over.
      num_processes: Number of hosts; each reads its own part of the batch.
    """
    accumulation = config.train.gradient_accumulation_steps
    parts = math.lcm(data_shards, num_processes) * accumulation
    sizes = {"train.batch_size": config.train.batch_size}
    if stages := config.train.get("stages"):
        used = [(i, entry) for i, entry in enumerate(stages) if entry.fraction]
        own = {f"train.stages[{i}].batch_size": s.batch_size for i, s in used if s.batch_size}
        sizes = own if len(own) == len(used) else sizes | own
    for path, size in sizes.items():
        if size % parts:
            raise UserError(
                f"config.{path} is {size}, which does not divide over {data_shards} data shards "
                f"on {num_processes} host(s) times {accumulation} gradient accumulation step(s); "
                f"the nearest that does is {max(1, round(size / parts)) * parts}"
            )
