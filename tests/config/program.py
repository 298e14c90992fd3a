"""A command whose main function has the body that its first argument gives."""

import errno  # noqa: F401
import sys

from absl import logging  # noqa: F401

from bert_jax.base.errors import UserError  # noqa: F401
from bert_jax.config import cli

if __name__ == "__main__":
    exec(f"def main(argv):\n    logging.info('chatter')\n    {sys.argv.pop(1)}")
    cli.run(locals()["main"])
