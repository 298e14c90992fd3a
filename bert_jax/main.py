"""Pre-trains BERT: `python -m bert_jax.main --config=configs/tiny.py --workdir=DIR`.

Flags override single values of the config: `--config.train.num_steps=200`. The same command, or
`--workdir` alone, continues an interrupted run.
"""

from absl import flags

from bert_jax.config import cli, validate
from bert_jax.config.command_line import config_source


def define_flags() -> None:
    cli.define_run_flags()
    flags.DEFINE_integer(
        "stopped_status",
        0,
        "Exit status of a run that a signal stopped, after which it saved a checkpoint; a status "
        "other than 0 tells a script to start the run again.",
    )


def main(_) -> int | None:
    args = flags.FLAGS
    # Process 1 of a container would ignore SIGTERM without a handler.
    cli.end_on_sigterm()
    # Reports wrong values before waiting for other hosts and before importing JAX and TensorFlow.
    validate(args.config, is_given=True)
    with cli.joined_hosts() as alone:
        workdir = cli.work_directory(alone)
        from bert_jax.commands.pretrain import pretrain

        results = pretrain(args.config, workdir, config_source())
    return args.stopped_status if results is None else None


if __name__ == "__main__":
    define_flags()
    cli.run(main)
