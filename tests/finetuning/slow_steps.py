"""Runs `bert_jax.finetune` with a pause of 0.05 seconds after each step.

python -m tests.finetuning.slow_steps FLAGS
"""

import time

import bert_jax.finetune as command
from bert_jax.config import cli
from bert_jax.training.recorder import Recorder

dispatched = Recorder.dispatched


def slowly(*args, **kwargs):
    dispatched(*args, **kwargs)
    time.sleep(0.05)


if __name__ == "__main__":
    Recorder.dispatched = slowly
    command.define_flags()
    cli.run(command.main)
