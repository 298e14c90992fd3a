"""The results of a study: the record, the table, and what the differences in it mean."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath
from rich.table import Table

import bert_jax
from bert_jax.base import files
from bert_jax.base.progress import empty_table
from bert_jax.finetuning.sweep import summarized
from bert_jax.reports.record import best_of, duration, read_run, totals, with_prefix
from bert_jax.studies.plan import RANDOM, Model, Settings, Task, finetuned, pretrained, size_of
from bert_jax.training import workdir


class Values(NamedTuple):
    """What one model reached in one quantity, over seeds.

    Attributes:
      name: The model.
      middle, lowest, highest: The median and the range.
      number: The number of seeds.
    """

    name: str
    middle: float
    lowest: float
    highest: float
    number: int

    @classmethod
    def of(cls, name: str, values: Sequence[float]) -> "Values":
        return cls(name, statistics.median(values), min(values), max(values), len(values))

    @property
    def spread(self) -> float:
        return self.highest - self.lowest

    def text(self, form: str) -> str:
        """Formats the median, and the range if there is more than one seed."""
        middle = format(self.middle, form)
        if self.number == 1:
            return middle
        return f"{middle} ({format(self.lowest, form)} to {format(self.highest, form)})"


class Quantity(NamedTuple):
    """A result of several models.

    Attributes:
      title: The quantity in words, with its unit.
      is_greater_better: Whether more is better.
      form: The format of a value.
      models: The values of the models that can be compared.
      random: The value of random weights; None if there is none.
    """

    title: str
    is_greater_better: bool
    form: str
    models: list[Values]
    random: Values | None = None


def collect(
    settings: Settings, models: Sequence[Model], tasks: Sequence[Task], directory: epath.Path
) -> dict[str, Any]:
    """Reads the results of all parts.

    Returns:
      `models`: for each its `name`, `parameters`, `steps`, `tokens`, `flops`, `seconds` (the mean
      training time), `loss` (`label`, `values` over the seeds, `baselines` and `perplexities`; None
      without held-out text) and, by task, `scores` (100 times the metric). `tasks`: by name, the
      `metric` and the scores of random weights, `random`. `reference`: the FLOPs of BERT-base.
    """
    rows = []
    for model in models:
        runs = [
            read_run(pretrained(directory, model.folder, seed))
            for seed in range(settings.pretraining_seeds)
        ]
        loss = None
        if runs[0].metrics:
            # The most important metric of a run is its first.
            label, metric = next(iter(runs[0].metrics.items()))
            perplexity = metric.name.removesuffix("loss") + "perplexity"
            loss = {
                "label": label,
                "is_greater_better": best_of(metric) is max,
                "values": [run.value(label) for run in runs],
                "baselines": [run.baseline(label) for run in runs],
                "perplexities": [run.values.get(perplexity) for run in runs],
            }
        seconds = [totals(run)[0] for run in runs]
        row = {"name": model.name, **model.size._asdict(), "seconds": statistics.mean(seconds)}
        seeds = range(settings.pretraining_seeds)
        scores = {
            task.name: _scores([finetuned(directory, model.folder, s, task.name) for s in seeds])
            for task in tasks
        }
        rows.append({**row, "loss": loss, "scores": scores})
    by_task = {}
    for task in tasks:
        path = finetuned(directory, RANDOM, 0, task.name)
        metric = files.read_json(path / workdir.SWEEP)["metric"]
        by_task[task.name] = {"metric": metric, "random": _scores([path])}
    reference = size_of(bert_jax.load_config("base")).flops
    return {"models": rows, "tasks": by_task, "reference": reference}


def _scores(sweeps: Sequence[epath.Path]) -> dict[str, Any]:
    """Returns the scores of the setting with the best median over all sweeps of a model."""
    found = [files.read_json(path / workdir.SWEEP) for path in sweeps]
    runs = [run for sweep in found for run in sweep["runs"]]
    diverged = [run for sweep in found for run in sweep["diverged"]]
    best = summarized(runs, diverged)[0]
    full = 1.0 if found[0]["task"].startswith("squad") else 100.0
    keys = ("schedule.peak_learning_rate", "train.batch_size")
    setting = best["learning_rate"], best["batch_size"]
    return {
        "learning_rate": best["learning_rate"],
        "batch_size": best["batch_size"],
        "diverged": best["diverged"],
        "values": [full * run["score"] for run in runs if tuple(run[k] for k in keys) == setting],
    }


def quantities(results: Mapping[str, Any]) -> list[Quantity]:
    """Lists the losses and scores; losses on different text or pieces are separate quantities."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in results["models"]:
        if loss := row["loss"]:
            baselines = [b if b is None else round(b, 6) for b in loss["baselines"]]
            key = (loss["label"], loss["is_greater_better"], *baselines)
            groups.setdefault(key, []).append(row)
    found = []
    for (label, is_greater_better, *baselines), rows in groups.items():
        title = f"held-out {label}"
        if len([other for other in groups if other[0] == label]) > 1 and baselines[0] is not None:
            title += f", baseline {baselines[0]:.3f}"
        models = [Values.of(row["name"], row["loss"]["values"]) for row in rows]
        found.append(Quantity(title, is_greater_better, ".3f", models))
    for task, about in results["tasks"].items():
        models = [Values.of(r["name"], r["scores"][task]["values"]) for r in results["models"]]
        random = Values.of("random weights", about["random"]["values"])
        found.append(Quantity(f"{task} {about['metric']}", True, ".1f", models, random))
    return found


def table_rows(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the headers and the cells of the table of a study."""
    headers = ["model", "parameters", "steps", "tokens", "FLOPs", "time"]
    headers += ["loss", "perplexity", "baseline"]
    headers += [f"{task} {about['metric']}" for task, about in results["tasks"].items()]
    rows = []
    for row in results["models"]:
        cells = [row["name"], with_prefix(row["parameters"], ""), f"{row['steps']:,}"]
        cells += [with_prefix(row["tokens"], ""), with_prefix(row["flops"], "")]
        cells += [duration(row["seconds"]), *_loss_cells(row)]
        for task in results["tasks"]:
            cells.append(Values.of("", row["scores"][task]["values"]).text(".1f"))
        rows.append(cells)
    if results["tasks"]:
        scores = [
            Values.of("", x["random"]["values"]).text(".1f") for x in results["tasks"].values()
        ]
        rows.append([f"random weights as in {rows[0][0]}", *[""] * 8, *scores])
    return headers, rows


def _loss_cells(row: Mapping[str, Any]) -> list[str]:
    if not row["loss"]:
        return ["", "", ""]
    values, perplexities = Values.of("", row["loss"]["values"]), row["loss"]["perplexities"]
    perplexity = "" if None in perplexities else f"{statistics.median(perplexities):.1f}"
    baseline = row["loss"]["baselines"][0]
    return [values.text(".3f"), perplexity, "" if baseline is None else f"{baseline:.3f}"]


def table(results: Mapping[str, Any]) -> Table:
    """Makes the table of a study for a terminal."""
    headers, rows = table_rows(results)
    made = empty_table(f"{len(results['models'])} models", *headers)
    for row in rows:
        made.add_row(*row)
    return made


def conclusions(results: Mapping[str, Any]) -> list[str]:
    """Says in sentences what the differences of a study mean, and what they cannot show.

    The spread of two models is the larger of their ranges over the seeds. A difference of medians
    that does not exceed it may be due to the seeds.
    """
    sentences, alone = [], []
    for quantity in quantities(results):
        if len(quantity.models) > 1:
            sentences += _comparison(quantity)
        else:
            alone.append(f"{quantity.models[0].name} ({quantity.title})")
    if alone:
        sentences.append(
            "Only one model has each of these losses, on its own rows and masks, so there is "
            f"nothing to compare: {'; '.join(alone)}. Scores of --tasks can be compared."
        )
    most = max(row["flops"] for row in results["models"])
    share = results["reference"] / most
    if share > 2:
        sentences.append(
            f"The longest pre-training has {with_prefix(most, 'FLOPs')}; BERT-base's has "
            f"{float(f'{share:.2g}'):,.0f} times as many. An order at this size says which "
            "model learns fastest at the beginning; it need not hold for longer training, more "
            "text or other learning rates."
        )
    return sentences


def _comparison(quantity: Quantity) -> list[str]:
    ranked = sorted(quantity.models, key=lambda v: v.middle, reverse=quantity.is_greater_better)
    title, form = quantity.title, quantity.form
    order = ", ".join(f"{v.name} {v.text(form)}" for v in ranked)
    sentences = [f"{title}, the best first: {order}."]
    if min(v.number for v in ranked) == 1:
        what = "seeds" if quantity.random else "pretraining_seeds"
        sentences.append(
            f"{title}: with one seed, the spread is unknown, so small differences may be due to "
            f"chance; --{what}=2 or more shows it."
        )
        return sentences
    pairs = list(itertools.combinations(ranked, 2))
    within = [(a, b) for a, b in pairs if _is_within_spread(a, b)]
    if within:
        named = "; ".join(f"{a.name} and {b.name}" for a, b in within[:10])
        more = f"; and {len(within) - 10} more" if len(within) > 10 else ""
        sentences.append(
            f"{title}: {len(within)} of {len(pairs)} differences are below the spread over the "
            f"seeds and show nothing: {named}{more}."
        )
    else:
        sentences.append(f"{title}: every difference is above the spread over the seeds.")
    if quantity.random:
        no_better = [
            v.name
            for v in ranked
            if v.middle <= quantity.random.middle or _is_within_spread(v, quantity.random)
        ]
        sentences.append(
            f"{title}: random weights reach {quantity.random.text(form)}; "
            + (
                f"{', '.join(no_better)} {'is' if len(no_better) == 1 else 'are'} not above them "
                "by more than the spread, so this pre-training is not seen in the score."
                if no_better
                else "every model is above them by more than the spread."
            )
        )
    return sentences


def _is_within_spread(a: Values, b: Values) -> bool:
    return abs(a.middle - b.middle) <= max(a.spread, b.spread)
