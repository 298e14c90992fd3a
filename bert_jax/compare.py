"""Pre-trains several configs on the same text, fine-tunes each, and compares them.

    python -m bert_jax.compare --configs=sizes:tiny_L1_H64_A1,sizes:tiny_L2_H128_A2 \\
        --workdir=DIR [--equal=flops] [--tasks=mrpc,rte --glue=glue_data --seeds=3]

--config.KEY=VALUE changes a value of every config, and --finetune.KEY=VALUE one of every
fine-tuning. The study ends with a table, results.json and report.html. The same command continues
an interrupted study; finished parts are not repeated.
"""

import re
import sys

from absl import flags

from bert_jax.base.errors import UserError
from bert_jax.config import cli

_OVERRIDE = re.compile(r"--?((config|finetune)\.[^=]+)")


def define_flags() -> None:
    """Defines the flags of the command line."""
    flags.DEFINE_list("configs", [], "Configs to compare, as for --config of bert_jax.main.")
    flags.DEFINE_string("workdir", "", "Directory of the study.")
    flags.DEFINE_enum(
        "equal", "steps", ["steps", "tokens", "flops"], "What is equal in all pre-trainings."
    )
    flags.DEFINE_float(
        "budget", 0.0, "The equal steps, tokens or FLOPs; 0 for those of the first config."
    )
    flags.DEFINE_list(
        "tasks", [], "Tasks to fine-tune on: a GLUE task, or TASK=FOLDER (ner=wnut17, squad=squad)."
    )
    flags.DEFINE_string("glue", "", "The folder with the folders of the GLUE tasks (glue_data).")
    flags.DEFINE_integer("seeds", 3, "Seeds of each fine-tuning.", lower_bound=1)
    flags.DEFINE_integer(
        "pretraining_seeds",
        1,
        "Pre-trainings of each config, with seeds from its own on.",
        lower_bound=1,
    )
    # ml_collections defines such flags for a single config only.
    found = filter(None, map(_OVERRIDE.match, sys.argv[1:]))
    for name in dict.fromkeys(match[1] for match in found):
        flags.DEFINE_string(name, None, "A value of all configs.")


def main(_) -> None:
    args = flags.FLAGS
    if not args.workdir:
        raise UserError("--workdir is missing: the directory that the study is written to")
    overrides = {
        name: args[name].value
        for name in args
        if _OVERRIDE.fullmatch(f"--{name}") and args[name].present
    }
    from bert_jax.studies.plan import Settings
    from bert_jax.studies.run import compare

    names = ("configs", "equal", "budget", "tasks", "glue", "seeds", "pretraining_seeds")
    typed = {name: args[name].value for name in names if args[name].present}
    compare(Settings(**typed, overrides=overrides), args.workdir)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
