"""Runs the pre-trainings and fine-tunings of a study, and compares them.

    python -m bert_jax.compare --config=configs/studies.py:table6 --workdir=DIR
    python -m bert_jax.compare --config=studies:table6,glue_data --workdir=DIR \\
        --config.main=--config.data.input='BOOKS/*.jsonl.gz'

The config lists the runs with what differs between them; copy configs/studies.py for your own.
--config.main and --config.finetune are flags of every pre-training and fine-tuning, with commas
between; a flag with a comma in it is --config.main="('--config.data.sources=en=A,de=B',)". All
flags are checked before the first run. Each run has a work directory DIR/NAME. The study ends with
a table and a page about the pre-trainings and about each task. The same command continues an
interrupted study.
"""

from absl import flags

from bert_jax.base.errors import UserError
from bert_jax.config import cli


def define_flags() -> None:
    cli.define_config_flag()
    flags.DEFINE_string("workdir", None, "Directory of the study.", required=True)


def main(_) -> None:
    args = flags.FLAGS
    if "runs" not in args.config:
        raise UserError("--config must be a study, such as configs/studies.py:table6")
    from bert_jax.studies.run import compare

    compare(args.config, args.workdir)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
