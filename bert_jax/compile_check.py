"""Compiles a config's train step for a TPU slice, without a TPU.

    python -m bert_jax.compile_check --config=configs/large.py --topology=v5e:16x16
    python -m bert_jax.compile_check --config=configs/large.py --topology=v4-128 \\
        --stage=2 --batch_size_per_chip=auto --output=large.json
    python -m bert_jax.compile_check --config=configs/large.py --topology=v5e:4x4 \\
        --plan --price_per_chip_hour=1.2

A config of sentence embeddings is checked too, with the shape of the model in config.init_from;
`--plan` also reads its data.

This compiles the same step with the same compiler (`pip install -e '.[tpu]'`) as a run on the
slice, and reports the memory that the compiler allocates. The time is an estimate from the
compiler's cost model and, for collectives and Pallas kernels, from documented peaks; see
`bert_jax.tpu.estimate`. With `--plan`, it compiles all stages and reports what the whole run takes.

Exit status: 0 if the step fits; 1 if it does not, or for a mistake in the config.
"""

from absl import flags

from bert_jax import config as config_lib
from bert_jax.config import cli, finetuning


def define_flags() -> None:
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


def main(_) -> None:
    args = flags.FLAGS
    size = None if args.batch_size_per_chip == "auto" else int(args.batch_size_per_chip or 0)
    # `auto` finds the largest batch of one stage.
    if args.plan and size is None:
        raise cli.UsageError("--batch_size_per_chip=auto is not used with --plan; give a number")
    if args.plan:
        cli.refuse_flags(("stage",), "with --plan")
    else:
        cli.refuse_flags(("price_per_chip_hour",), "without --plan")
    is_finetuning = "task" in args.config
    if is_finetuning:
        cli.refuse_flags(("stage", "batch_size_per_chip"), "with a config of fine-tuning")
        finetuning.validate(args.config)
    else:
        config_lib.validate(args.config)
    # Imported late to load JAX after the checks.
    from bert_jax.tpu import check, topologies

    topology = topologies.find(args.topology, args.num_slices)
    price = args.price_per_chip_hour
    if is_finetuning:
        check.check_finetuning(args.config, topology, price, args.output, with_plan=args.plan)
    elif args.plan:
        check.plan(args.config, topology, size, price, args.output)
    else:
        check.check(args.config, topology, args.stage, size, args.output)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
