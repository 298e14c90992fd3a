"""Fine-tunes a BERT on a task.

    python -m bert_jax.finetune --config=configs/finetune/glue.py:mrpc \\
        --config.data.input=glue_data/MRPC --config.init_from=PATH --workdir=DIR

PATH is a work directory of pre-training, a Hugging Face directory or a Google checkpoint.
The same command, or --workdir alone, continues an interrupted run. With --sweep it runs the grid
of config.sweep, each run in its own directory, and prints medians and spreads. `glue.py:all`
fine-tunes on all of GLUE.
"""

from absl import flags

from bert_jax.config import cli
from bert_jax.config.command_line import config_source
from bert_jax.config.finetuning import ALL, check_sweep_flags


def define_flags() -> None:
    cli.define_run_flags(has_sweep=True)


def main(_) -> None:
    args = flags.FLAGS
    source = config_source()
    if "sweep" in args.config:
        check_sweep_flags(args.config, source.flags, args.sweep)
    with cli.joined_hosts() as alone:
        workdir = cli.work_directory(alone)
        from bert_jax.commands.finetune import finetune
        from bert_jax.studies import sweep
        from bert_jax.training.start import print_differences

        print_differences(args.config, source)
        if args.config.get("task") == ALL:
            sweep.finetune_all(args.config, workdir, args.sweep)
        elif args.sweep:
            sweep.sweep(args.config, workdir)
        else:
            finetune(args.config, workdir, source=source)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
