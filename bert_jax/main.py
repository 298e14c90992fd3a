"""Pre-trains BERT: `python -m bert_jax.main --config=configs/tiny.py --workdir=DIR`.

Every value of the config can be overridden: `--config.train.num_steps=200`. A second
start of the same command in the same work directory goes on where the first stopped.
"""

from absl import flags
from ml_collections import config_flags

from bert_jax import cli
from bert_jax.config import validate
from bert_jax.errors import UserError


def define_flags() -> None:
    """Called by the command line only."""
    config_flags.DEFINE_config_file("config", None, "The config file.", lock_config=True)
    flags.DEFINE_string("workdir", "", "Where the run is; wins over config.workdir.")
    cli.define_host_flags()


def main(_) -> None:
    args = flags.FLAGS
    workdir = args.workdir or args.config.workdir
    if not workdir:
        raise UserError("--workdir is missing: the directory where the run is to be written")
    validate(args.config)
    # After the checks: a typing error must not wait for other hosts, nor for JAX and
    # TensorFlow to load.
    with cli.joined_hosts():
        from bert_jax import train

        train.train(args.config, workdir)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
