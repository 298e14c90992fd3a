"""Compiles the train step of one layer for chips of each generation, where libtpu is installed.

    python -m tests.tpu.one_layer FOLDER

It writes FOLDER/one_layer_CHIP.hlo.xz, without the names of operations in the source. The files
beside this one are its output for the libtpu in their first line; test_hlo.py says what is known
of the programs.
"""

import importlib.metadata
import lzma
import re
import sys
from pathlib import Path

from ml_collections import ConfigDict

from bert_jax.config import stage
from bert_jax.models import BertConfig
from bert_jax.objectives.flops import pretraining_flops_per_sequence
from bert_jax.objectives.terms import make_terms
from bert_jax.tpu import topologies
from bert_jax.tpu.compilation import compile_step
from bert_jax.training.stages import numbered_stage
from tests.small import small_config

TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
CHIPS = 4


def config() -> ConfigDict:
    c = small_config(dtype="bfloat16", sharding="zero1")
    c.model.update(
        vocab_size=1024,
        hidden_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=128,
        # Keys of dropout are half of the program's lines.
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    c.mesh.fsdp = CHIPS
    c.train.batch_size = 64
    c.train.stages = (stage(fraction=1.0, max_seq_length=128, max_predictions_per_seq=16),)
    return c


def flops_per_sequence() -> float:
    model = BertConfig(**config().model)
    (only,) = config().train.stages
    sizes = only.max_seq_length, only.max_predictions_per_seq
    return pretraining_flops_per_sequence(model, make_terms(), *sizes)


def program_of(chip: str, folder: Path = Path(__file__).parent) -> str:
    with lzma.open(folder / f"one_layer_{chip}.hlo.xz", "rt") as file:
        return file.read()


def main(folder: Path) -> None:
    version = importlib.metadata.version("libtpu")
    for chip, name in TOPOLOGIES.items():
        topology = topologies.find(name)
        devices = topologies.devices(topology)
        text = compile_step(config(), topology, devices, numbered_stage(config(), 1)).text
        text = re.sub(r", metadata=\{[^}]*\}", "", text)
        with lzma.open(folder / f"one_layer_{chip}.hlo.xz", "wt", preset=9) as file:
            file.write(f"// libtpu {version}\n{text}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
