"""Compiles a config's train step for a TPU slice, without a TPU.

    python -m bert_jax.compile_check --config=configs/large.py --topology=v5e:16x16
    python -m bert_jax.compile_check --config=configs/large.py --topology=v4-128 \\
        --stage=2 --batch_size_per_chip=auto --output=large.json
    python -m bert_jax.compile_check --config=configs/large.py --topology=v5e:4x4 \\
        --plan --price_per_chip_hour=1.2

This compiles the same step with the same compiler (`pip install -e '.[tpu]'`) as a run on the
slice, and reports the memory that the compiler allocates. The time is an estimate from the
compiler's cost model and, for collectives and Pallas kernels, from documented peaks; see
`bert_jax.tpu.estimate`. With `--plan`, it compiles all stages and reports what the whole run takes.

Exit status: 0 if the step fits; 1 if it does not, or for a mistake in the config.
"""

from absl import flags

from bert_jax import config as config_lib
from bert_jax.config import cli


def define_flags() -> None:
    """Defines this command's flags."""
    cli.define_config_flag()
    flags.DEFINE_string(
        "topology",
        None,
        "The slice (v5e:16x16, v4:4x4x4, ...) or accelerator type (v5litepod-256, v4-128, ...).",
        required=True,
    )
    flags.DEFINE_integer("num_slices", 1, "Number of such slices.", lower_bound=1)
    flags.DEFINE_integer("stage", 1, "Which of config.train.stages, counted from 1.")
    flags.DEFINE_string(
        "batch_size_per_chip",
        "",
        "Sequences per chip, or `auto` for the largest that fits. By default, the config's batch.",
    )
    flags.DEFINE_string("output", "", "Also write the results to this JSON file.")
    flags.DEFINE_bool(
        "plan", False, "Report the hours, chip-hours, tokens and checkpoints of the whole run."
    )
    flags.DEFINE_float(
        "price_per_chip_hour", None, "With --plan: the price of a chip-hour.", lower_bound=0
    )
    flags.DEFINE_float(
        "checkpoint_mb_per_second",
        500,
        "With --plan: the speed at which all hosts together write a checkpoint. An assumption.",
        lower_bound=1,
    )
    flags.DEFINE_string("hlo_output", "", "Write the compiled program's text to this file.")


def main(_) -> None:
    args = flags.FLAGS
    size = _batch_size_per_chip(args.batch_size_per_chip)
    _check_flags_of_plan(args)
    config_lib.validate(args.config)
    # Imported late to load JAX after the checks.
    from bert_jax.tpu import check, topologies
    from bert_jax.tpu.plan import plan

    topology = topologies.find(args.topology, args.num_slices)
    if args.plan:
        plan(
            args.config,
            topology,
            batch_size_per_chip=size,
            price_per_chip_hour=args.price_per_chip_hour,
            checkpoint_mb_per_second=args.checkpoint_mb_per_second,
            output=args.output,
        )
        return
    check.check(
        args.config,
        topology,
        args.stage,
        batch_size_per_chip=size,
        output=args.output,
        hlo_output=args.hlo_output,
    )


def _check_flags_of_plan(args: flags.FlagValues) -> None:
    """Refuses flags that would have no effect."""
    of_plan = ("price_per_chip_hour", "checkpoint_mb_per_second")
    for name in ("stage", "hlo_output") if args.plan else of_plan:
        if args[name].present:
            reason = "--plan covers all stages" if args.plan else "only --plan uses it"
            raise cli.UsageError(f"--{name}={args[name].value} has no effect: {reason}")
    if args.plan and args.batch_size_per_chip == "auto":
        raise cli.UsageError(
            "--batch_size_per_chip=auto finds the largest batch of one --stage; with --plan, give "
            "a number, or nothing for the config's batches"
        )


def _batch_size_per_chip(value: str) -> int | None:
    """Parses the flag; returns None for `auto` and 0 for the config's own batch."""
    if value == "auto":
        return None
    if value and (not value.isascii() or not value.isdigit() or int(value) < 1):
        raise cli.UsageError(f"--batch_size_per_chip={value} must be auto, or 1 or more")
    return int(value or 0)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
