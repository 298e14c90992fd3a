"""Fine-tunes a BERT on a task.

    python -m bert_jax.finetune --config=configs/finetune/glue.py:mrpc \\
        --config.data.input=glue_data/MRPC --config.init_from=PATH --workdir=DIR

PATH is a work directory of pre-training, a Hugging Face directory or a Google checkpoint.
The same command, or --workdir alone, continues an interrupted run. With --sweep it runs the grid
of config.sweep, each run in its own directory, and prints medians and spreads. `glue.py:all`
fine-tunes on all of GLUE.
"""

from collections.abc import Iterable

from absl import flags
from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.config import cli
from bert_jax.config.command_line import config_source
from bert_jax.config.finetuning import ALL

# The keys that the runs of a sweep take from `config.sweep`.
_SWEPT = {
    "schedule.peak_learning_rate": "learning_rates",
    "train.batch_size": "batch_sizes",
    "seed": "seeds",
}


def define_flags() -> None:
    cli.define_run_flags(has_sweep=True)


def check_flags(config: ConfigDict, given: Iterable[str], is_sweep: bool) -> None:
    """Refuses keys that were given and have no effect with or without --sweep."""
    swept = _SWEPT | ({"train.num_epochs": "epochs"} if any(config.sweep.epochs) else {})
    for key in sorted(given):
        if key.startswith("sweep.") and not is_sweep:
            raise UserError(f"--config.{key} has no effect without --sweep")
        if key in swept and is_sweep:
            values = ",".join(map(str, config.sweep[swept[key]]))
            raise UserError(
                f"--config.{key} has no effect with --sweep, which tries "
                f"config.sweep.{swept[key]}={values}"
            )


def main(_) -> None:
    args = flags.FLAGS
    source = config_source()
    if "sweep" in args.config:
        check_flags(args.config, source.flags, args.sweep)
    with cli.joined_hosts() as alone:
        workdir = cli.work_directory(alone)
        from bert_jax.finetuning import run, sweep
        from bert_jax.training.start import print_differences

        print_differences(args.config, source)
        if args.config.get("task") == ALL:
            sweep.finetune_all(args.config, workdir, args.sweep)
        elif args.sweep:
            sweep.sweep(args.config, workdir)
        else:
            run.finetune(args.config, workdir, source=source)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
