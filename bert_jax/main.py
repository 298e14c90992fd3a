"""Pre-trains BERT: `python -m bert_jax.main --config=configs/tiny.py --workdir=DIR`.

Flags override single values of the config: `--config.train.num_steps=200`. The same command, or
`--workdir` alone, continues an interrupted run.
"""

from absl import flags

from bert_jax.config import cli, validate
from bert_jax.config.command_line import config_source


def define_flags() -> None:
    cli.define_run_flags()


def main(_) -> None:
    args = flags.FLAGS
    # Reports wrong values before waiting for other hosts and before importing JAX and TensorFlow.
    validate(args.config, is_given=True)
    with cli.joined_hosts() as alone:
        workdir = cli.work_directory(alone)
        from bert_jax.commands.pretrain import pretrain

        pretrain(args.config, workdir, config_source())


if __name__ == "__main__":
    define_flags()
    cli.run(main)
