"""Runs `bert_jax.main` without training: a run that ends at once, or is stopped.

python -m tests.launch.stopped stopped|ended FLAGS
"""

import sys

from bert_jax import main
from bert_jax.commands import pretrain
from bert_jax.config import cli

if __name__ == "__main__":
    results = {"stopped": None, "ended": {}}[sys.argv.pop(1)]
    pretrain.pretrain = lambda *_: results
    main.define_flags()
    cli.run(main.main)
