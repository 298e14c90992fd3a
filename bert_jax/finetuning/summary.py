"""Prints the description and the results of a fine-tuning run."""

import difflib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from bert_jax import workdir
from bert_jax.progress import say
from bert_jax.tasks.table_files import as_number
from bert_jax.tasks.task import Task
from bert_jax.training.trainer import Trainer

# The most classes and warnings about them to print.
_MOST_CLASSES = 20
_MOST_WARNINGS = 3
# A class is rare if it has less than this share of the mean number of examples.
_RARE = 0.02
# A class may be a misspelling of one that is so similar and this many times as frequent.
_SIMILAR, _MUCH = 0.8, 10


def announce(
    config: ConfigDict,
    task: Task,
    trainer: Trainer,
    num_steps: int,
    directory: epath.PathLike,
    step: int,
    warnings: Sequence[str],
) -> None:
    """Describes the run before the first compilation, which takes a while."""
    devices = trainer.mesh.devices
    splits = [split for split in task.splits if not split.startswith("test")]
    rows = ", ".join(f"{len(task.rows(split)):,} {split}" for split in splits)
    what = f"{len(task.labels)} labels" if task.labels else task.head.replace("_", " ")
    say(
        f"{task.name} ({what}; rows: {rows}) with a BERT of {trainer.num_parameters():,} "
        f"parameters ({config.dtype}) on {devices.size} x {devices.flat[0].device_kind}"
    )
    say(
        f"{num_steps:,} steps of {config.train.batch_size:,} examples, "
        f"{config.train.num_epochs:g} epochs"
    )
    if counts := task.class_counts():
        say(describe_classes(counts))
        for warning in doubtful_classes(counts):
            say(f"warning: {warning}")
    for split, dropped in task.dropped.items():
        for reason, count in dropped.items():
            say(f"warning: {count:,} bad rows in {split}: {reason}")
    for warning in warnings:
        say(f"warning: {warning}")
    scratch = " (shape and vocabulary only)" if config.from_scratch else ""
    beginning = f"starting with {config.init_from}{scratch}"
    say(f"{f'continuing from step {step:,}' if step else beginning} in {directory}")


def describe_classes(counts: Mapping[str, int]) -> str:
    """Returns one line with the classes and their counts, the most frequent first."""
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name!r} {count:,}" for name, count in ranked[:_MOST_CLASSES])
    more = len(ranked) - _MOST_CLASSES
    return f"training examples by class: {shown}" + (
        f" and {more:,} more classes" if more > 0 else ""
    )


def doubtful_classes(counts: Mapping[str, int]) -> list[str]:
    """Returns a sentence for each class that is rare or looks like a misspelling of another."""
    found = []
    mean = sum(counts.values()) / len(counts)
    for name, count in counts.items():
        others = {other.casefold(): other for other, n in counts.items() if n > _MUCH * count}
        near = difflib.get_close_matches(name.casefold(), others, 1, _SIMILAR)
        # Numbers resemble each other without being misspelled.
        if near and as_number(name) is None:
            other = others[near[0]]
            hint = f"; is it a misspelling of {other!r} ({counts[other]:,})?"
        elif count < _RARE * mean:
            hint = "; the model can hardly learn it"
        else:
            continue
        found.append(f"class {name!r} has few training examples ({count:,}){hint}")
    if len(found) > _MOST_WARNINGS:
        found[_MOST_WARNINGS:] = [f"{len(found) - _MOST_WARNINGS:,} more classes are rare"]
    return found


def summarize(results: dict[str, Any], directory: epath.PathLike) -> None:
    """Prints the scores of the best checkpoint."""
    path = epath.Path(directory)
    splits = {name: scores for name, scores in results.items() if isinstance(scores, dict)}
    table = Table()
    table.add_column("")
    for split in splits:
        table.add_column(split, justify="right")
    for name in next(iter(splits.values())):
        table.add_row(name, *(f"{scores[name]:.4f}" for scores in splits.values()))
    say(f"\n{results['task']}: step {results['best_step']:,}, the best by {results['metric']}")
    Console().print(table)
    print(f"results      {path / workdir.RESULTS}, {path / 'metrics.jsonl'}")
    print(f"curves       {path / workdir.CURVES}, {path / 'tensorboard'}")


def advise(config: ConfigDict, directory: epath.PathLike) -> None:
    """Prints a command that uses the best checkpoint of a run."""
    path = shlex.quote(str(directory))
    if config.train.features:
        # `transformers` has no class for a head on several layers.
        print(f"what next    predict: python -m bert_jax.predict --model={path} --help")
        return
    print("what next    convert it for transformers:")
    print(f"             python -m bert_jax.convert --input={path} --to=huggingface --output=DIR")
