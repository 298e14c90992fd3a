"""Prints the description and the results of a fine-tuning run."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.base.parts import is_trusted
from bert_jax.base.progress import empty_table, say, say_next, terminal
from bert_jax.heads import load_head
from bert_jax.heads.sequence_classification import find_text_columns
from bert_jax.heads.verb import TEXT_OR_PAIR
from bert_jax.tasks.example_task import as_number
from bert_jax.tasks.scores import score_text
from bert_jax.tasks.task import Task
from bert_jax.training import workdir
from bert_jax.training.metrics import BASELINE, CLASSES
from bert_jax.training.state import num_parameters
from bert_jax.training.trainer import Trainer

# The number of classes to print.
_MAX_CLASSES = 20


def announce(
    config: ConfigDict,
    task: Task,
    trainer: Trainer,
    directory: epath.PathLike,
    step: int,
    warnings: Sequence[str],
) -> None:
    """Describes the run before the first compilation, which takes a while."""
    devices = trainer.mesh.devices
    splits = ("train", *task.scored_splits)
    rows = ", ".join(f"{task.rows(split).num_examples:,} {split}" for split in splits)
    # The name of a head from outside the package is that of its code.
    head = task.head if ":" in task.head else task.head.replace("_", " ")
    what = f"{len(task.labels)} labels" if task.labels else head
    say(
        f"{task.name} ({what}; rows: {rows}) with a BERT of {num_parameters(trainer.model):,} "
        f"parameters ({config.dtype}) on {devices.size} x {devices.flat[0].device_kind}"
    )
    say(
        f"{trainer.stages[-1].end_step:,} steps of {config.train.batch_size:,} examples, "
        f"{config.train.num_epochs:g} epochs"
    )
    if described := task.rows("train").described():
        say(described)
    if task.parts:
        train, validation = task.parts
        held_out = task.rows(validation).num_examples
        say(
            f"config.data.input has no validation split: {held_out:,} of its "
            f"{len(task.rows(train)) + held_out:,} examples are held out for validation"
        )
    if counts := task.class_counts():
        for line in describe_classes(counts):
            say(line)
    for split, dropped in task.dropped.items():
        for reason, count in dropped.items():
            say(f"warning: {count:,} bad rows in {split}: {reason}")
    for warning in warnings:
        say(f"warning: {warning}")
    scratch = " (shape and vocabulary only)" if config.from_scratch else ""
    beginning = f"starting with {config.init_from}{scratch}"
    beginning = f"continuing from step {step:,}" if step else beginning
    say(f"{beginning} in {directory}; its {workdir.CONFIG} has all values")


def describe_classes(counts: Mapping[str, int]) -> list[str]:
    ranked = sorted(counts, key=lambda name: -counts[name])
    shown = ", ".join(f"{name!r} {counts[name]:,}" for name in ranked[:_MAX_CLASSES])
    more = len(ranked) - _MAX_CLASSES
    shown += f" and {more:,} more classes" if more > 0 else ""
    lines = [f"training examples by class: {shown}"]
    if len(counts) > 2 and all(as_number(name) is not None for name in counts):
        lines.append(
            "the labels are numbers, and each is a class of its own; to predict the number, set "
            "--config.table.regression=True"
        )
    return lines


def show(results: dict[str, Any], directory: epath.Path, with_advice: bool = True) -> None:
    """Prints the results of the finished run in a work directory, and what to do next."""
    summarize(results, directory)
    if with_advice:
        print(f"report       {directory / workdir.REPORT}")
        config = workdir.load_config(directory)
        advise(config, config.head, directory)


def summarize(results: dict[str, Any], directory: epath.PathLike) -> None:
    path, classes = epath.Path(directory), results.get(CLASSES, [])
    splits = {name: scores for name, scores in results.items() if scores and type(scores) is dict}
    # The baseline is the last column.
    splits |= {BASELINE: splits.pop(BASELINE)} if BASELINE in splits else {}
    # A terminal wraps words.
    table = empty_table("", "", *(name.replace("_", " ") for name in splits))
    # A test split may lack, for example, an entity type.
    for name in dict.fromkeys(name for scores in splits.values() for name in scores):
        cells = (score_text(scores[name]) if name in scores else "" for scores in splits.values())
        positive = f" of {classes[1]['class']}" if name == "f1" and len(classes) == 2 else ""
        table.add_row(name + positive, *cells)
    say(f"\n{results['task']}: step {results['best_step']:,}, the best by {results['metric']}")
    terminal().print(table)
    print_classes(classes)
    print(f"results      {path / workdir.RESULTS}, {path / 'metrics.jsonl'}")
    print(f"curves       {path / workdir.CURVES}, {path / 'tensorboard'}")


def print_classes(classes: Sequence[Mapping[str, Any]]) -> None:
    """Prints the scores of each class; see `Task.class_table`."""
    if not classes or len(classes) > _MAX_CLASSES:
        return
    table = empty_table("", "class", "precision", "recall", "f1", "rows")
    for row in classes:
        scores = (f"{row[name]:.4f}" for name in ("precision", "recall", "f1"))
        table.add_row(row["class"], *scores, f"{row['support']:,}")
    terminal().print(table)


def advise(config: ConfigDict, head: str, directory: epath.PathLike) -> None:
    """Prints commands that use the best checkpoint of a run."""
    outside = [name for name in (config.task, head) if ":" in name]
    if not all(map(is_trusted, outside)):
        # A finished run is shown without its own code.
        return
    path = " ".join([shlex.quote(str(directory)), *(f"--part={name}" for name in outside)])
    record, advice = load_head(head), {}
    if record.verb:
        texts = record.verb.example
        if record.verb.words == TEXT_OR_PAIR:
            columns = find_text_columns(config_lib.to_dict(config))
            texts = texts[: max(1, len(columns))]
        advice = {
            "predict": f"predict --model={path} {' '.join((record.verb.name, *texts))}",
            "score it on other labeled rows": f"evaluate --model={path} --data=FILE",
        }
    if record.transformers_class:
        advice["load it in transformers"] = f"convert --model={path} --output=DIR --to=huggingface"
    advice |= {what: command.format(path=path) for what, command in record.advice.items()}
    say_next(advice)
