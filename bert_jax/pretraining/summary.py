"""Prints the description of a run of pre-training, its results, and the commands to run next."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict
from rich.table import Table

from bert_jax.base.progress import empty_table, say, say_next, terminal
from bert_jax.batches import corpus_report
from bert_jax.config.command_line import config_files
from bert_jax.objectives.term import Metric
from bert_jax.pretraining.build import check_family, make_objective
from bert_jax.pretraining.input import RunInput, stream_spec
from bert_jax.text.named_sources import BUILT_IN, join_inputs, split_inputs
from bert_jax.training import workdir
from bert_jax.training.metrics import BEFORE, BY_SOURCE, OTHER_TEXT
from bert_jax.training.schedule import warmup_warnings
from bert_jax.training.stages import Stage
from bert_jax.training.state import num_parameters
from bert_jax.training.trainer import Trainer

# The small configs of RoBERTa's kin, which have no config file of their own.
_KIN = {
    "camembert": "roberta:camembert_tiny",
    "phobert": "roberta:phobert_tiny",
    "xlm_roberta": "roberta:xlmr_tiny",
}


def announce(
    config: ConfigDict,
    trainer: Trainer,
    run_input: RunInput,
    directory: epath.PathLike,
    step: int,
    warnings: list[str],
    reports: list[dict[str, Any]],
) -> None:
    """Describes the run and its corpus before the first compilation, which takes a while."""
    devices = trainer.mesh.devices
    terms = " + ".join(term.label for term in trainer.objective.terms)
    parameters = f"{num_parameters(trainer.model):,} parameters ({config.dtype})"
    say(f"{terms}: {parameters} on {devices.size} x {devices.flat[0].device_kind}")
    say(run_input.describe())
    if devices.size > 1:
        say(describe_layout(trainer))
    for stage in trainer.stages:
        say(
            f"steps {stage.first_step + 1:,} to {stage.end_step:,}: {stage.batch_size:,} sequences "
            f"of {stage.max_seq_length} tokens per step"
        )
    # Steps may be added to a run that has begun.
    later = [stage for stage in trainer.stages if stage.first_step >= step]
    warnings = [*warnings, *warmup_warnings(later)]
    if reports and not step:
        terminal().print(corpus_report.table(reports, corpus_report.MAIN_ROWS))
        if sources := corpus_report.source_table(reports):
            terminal().print(sources)
        warnings = [*warnings, *corpus_report.warnings(reports)]
    for warning in warnings:
        say(f"warning: {warning}")
    if step:
        beginning = f"continuing from step {step:,}"
    else:
        weights = f" with the weights of {config.init_from}" if config.init_from else ""
        beginning = f"starting{weights}"
    say(f"{beginning} in {directory}; its {workdir.CONFIG} has all values")


def describe_layout(trainer: Trainer) -> str:
    """Describes how much of the train state each device holds, in a sentence."""
    leaves = jax.tree.leaves(trainer.abstract_state())
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    here = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves
    )
    axes = ", ".join(f"{axis} {size}" for axis, size in trainer.mesh.shape.items())
    return (
        f"mesh {axes}; sharding {trainer.layout.description}: each device holds {here:,} of the "
        f"{whole:,} bytes of parameters and optimizer state"
    )


def corpus_reports(
    run_input: RunInput, config: ConfigDict, stages: Sequence[Stage]
) -> list[dict[str, Any]]:
    """Measures what the stages of each length see of the text; see `corpus_report.measure`."""
    of_length: dict[int, list[Stage]] = {}
    for stage in stages:
        of_length.setdefault(stage.max_seq_length, []).append(stage)
    return [
        corpus_report.measure(
            run_input.stream(stream_spec(config, alike[0])),
            sum(stage.num_steps * stage.batch_size for stage in alike),
            run_input.metadata,
        )
        for alike in of_length.values()
    ]


def show(results: dict[str, Any], path: epath.Path) -> None:
    """Prints the results of the finished run in a work directory, and what to do next."""
    config = workdir.load_config(path)
    # Parts from outside are refused, as in a run that is not finished.
    check_family(config)
    metrics = make_objective(config).metrics
    print()
    if "num_sequences" in results:
        title = f"Step {results['step']:,} on held-out documents"
        before = results.get(BEFORE)
        terminal().print(results_table(title, metrics, results, before))
        if BY_SOURCE in results:
            terminal().print(source_table(metrics, results))
        if config.eval.other_text:
            title = f"Step {results['step']:,} on {join_inputs(config.eval.other_text)}"
            terminal().print(results_table(title, metrics, results, before, prefix=OTHER_TEXT))
    else:
        say(
            f"Step {results['step']:,} is not evaluated: no document was held out (the corpus is "
            "too small, or config.data.heldout_fraction is 0)"
        )
    if speed := results.get("train_sequences_per_second"):
        compiling = f"{results.get('compile_seconds', 0):,.0f} s of compilation"
        print(f"speed        {speed:,.0f} sequences/s, after {compiling}")
    print(f"checkpoint   {path / workdir.CHECKPOINTS / str(results['step'])}")
    print(f"report       {path / workdir.REPORT}")
    print(f"curves       {path / workdir.CURVES}, {path / 'metrics.jsonl'}, {path / 'tensorboard'}")
    say_next(next_commands(config, path))


def results_table(
    title: str,
    metrics: Sequence[Metric],
    results: Mapping[str, float],
    before: Mapping[str, float] | None = None,
    prefix: str = "",
) -> Table:
    """Makes a table of the results, each beside its baseline."""
    columns = {"initial weights": before} if before else {}
    columns["this model"] = results
    table = empty_table(title, "", *columns, "baseline")
    for metric in metrics:
        name, baseline = prefix + metric.name, results.get(prefix + metric.baseline)
        if all(name in values for values in columns.values()):
            cells = (metric.text(values[name]) for values in columns.values())
            table.add_row(metric.label, *cells, "" if baseline is None else metric.text(baseline))
    numbers = (f"{values[f'{prefix}num_sequences']:,}" for values in columns.values())
    table.add_row("sequences", *numbers, "")
    return table


def source_table(metrics: Sequence[Metric], results: Mapping[str, Any]) -> Table:
    metrics = [metric for metric in metrics if metric.in_progress]
    labels = (metric.label.removesuffix(" (nats)") for metric in metrics)
    title = "Held-out documents by source (in brackets: baseline)"
    table = empty_table(title, "source", *labels, "sequences")
    for name, values in results[BY_SOURCE].items():
        cells = []
        for metric in metrics:
            baseline = values.get(metric.baseline)
            brackets = "" if baseline is None else f" ({metric.text(baseline)})"
            cells.append(metric.text(values[metric.name]) + brackets)
        table.add_row(name, *cells, f"{values['num_sequences']:,}")
    return table


def next_commands(config: ConfigDict, directory: epath.PathLike) -> dict[str, str]:
    """Proposes commands that use the model of a finished run, by purpose; see `say_next`."""
    commands, path, terms = {}, shlex.quote(str(directory)), config.objective.terms
    if "replaced_token" in terms:
        use = "detect 'The chef cooked the weather.'"
        commands["find replaced words"] = f"predict --model={path} {use}"
    elif "masked_lm" in terms:
        text = "MKT[MASK]YI" if config.data.tokenizer == "protein" else "It is [MASK]."
        commands["fill in a masked word"] = f"predict --model={path} fill-mask '{text}'"
    elif "diffusion" in terms:
        commands["write a text"] = f"predict --model={path} write 'It is' --length=32"
    elif "denoising" in terms:
        commands["restore a text"] = f"predict --model={path} denoise 'It is [MASK].'"
    commands["evaluate it on other text"] = f"evaluate --model={path} --data='my_text/*.txt'"
    if not config.data.sources and split_inputs(config.data.input) == [BUILT_IN]:
        has_recipe = config.family in config_files() and not config.objective.teacher
        recipe = f"{config.family}:tiny" if has_recipe else "mini_laptop"
        kin = "phobert" if config.data.tokenizer == "fastbpe" else config.family
        recipe = _KIN.get(kin, recipe)
        keys = "--config.data.input='my_text/*.txt'"
        commands["train on your own text"] = f"main --config={recipe} --workdir=DIR {keys}"
    else:
        keys = f"--config.init_from={path} --config.data.input=train=FILE,validation=FILE"
        commands["fine-tune it on labeled rows"] = (
            f"finetune --config=finetune/table --workdir=DIR {keys}"
        )
        commands["load it in transformers"] = (
            f"convert --model={path} --output=DIR --to=huggingface"
        )
    return commands
