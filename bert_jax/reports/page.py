"""The HTML page about one or several runs, in one file that needs no network."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from etils import epath

from bert_jax import config as config_lib
from bert_jax.base import files
from bert_jax.batches import corpus_report
from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.language_model import FILLED_TEXTS
from bert_jax.objectives.terms import make_terms
from bert_jax.reports.curves import LOWEST, has_points, panel_svg, write_curves
from bert_jax.reports.html import render
from bert_jax.reports.record import RunRecord, best_of, cost, read_runs, with_prefix
from bert_jax.training import workdir
from bert_jax.training.metrics import BEFORE, BY_SOURCE, CLASSES, EVALUATION_PREFIX, OTHER_TEXT
from bert_jax.training.state import num_parameters

# The evaluations whose filled masks are shown.
_MASK_STEPS = 3
# With more classes, the page has no table of confusions.
_MAX_CONFUSED = 20
# The values of a setting in sweep.json that are not scores.
_GRID = ("learning_rate", "batch_size", "epochs", "seeds", "diverged")
_MASKS = EVALUATION_PREFIX + FILLED_TEXTS


class Cell(NamedTuple):
    """A value in a table, a note below it, and whether it is the best of its column."""

    text: str
    note: str = ""
    is_best: bool = False


def write_pages(directory: epath.PathLike) -> None:
    """Writes curves.png, for a run, and report.html into the work directory of a run or sweep."""
    path, runs = epath.Path(directory), read_runs(directory)
    if len(runs) == 1:
        write_curves(runs[0].lines, path / workdir.CURVES, [*runs[0].panels.values()])
    files.write_whole(path / workdir.REPORT, page(runs).encode())


def page(runs: Sequence[RunRecord]) -> str:
    """Writes the HTML of a page about these runs, the best first."""
    main, runs = ranked(runs)
    names = names_of(run.directory for run in runs)
    facts = [facts_of(run, runs) for run in runs]

    def each(content: Callable[[RunRecord], Any]) -> list[tuple[str, Any]]:
        """Lists the content of each run that has any, by the name of the run."""
        found = [(name, content(run)) for name, run in zip(names, runs, strict=True)]
        return [(name, data) for name, data in found if data]

    # The figure of the main result comes first.
    titles = dict.fromkeys(title for run in runs for title in run.panels)
    plots = [_plot(title, runs) for title in sorted(titles, key=lambda title: title != main)]
    return render(
        "bert_jax.reports",
        "page.html",
        names=names,
        lead=_lead(names, runs, main),
        plots=[plot for plot in plots if plot],
        facts=facts,
        # First the scores, then the cost.
        labels=dict.fromkeys([*(x for run in runs for x in run.metrics), *itertools.chain(*facts)]),
        is_finetuning=all(workdir.is_finetuning(run.config) for run in runs),
        settings=settings_of(runs, main),
        masks=each(_masks),
        before=each(_before),
        sources=each(_sources),
        classes=each(_classes),
        corpus=each(_corpus),
        differences=_differences(runs),
        configs=each(lambda run: json.dumps(config_lib.to_dict(run.config), indent=2)),
    )


def names_of(directories: Iterable[epath.Path]) -> list[str]:
    """Names directories by their last parts or, if two are equal, by their paths."""
    paths = [*directories]
    names = [path.name for path in paths]
    return names if len({*names}) == len(names) else [*map(str, paths)]


def ranked(runs: Sequence[RunRecord]) -> tuple[str, list[RunRecord]]:
    """Returns the label of the main result, and the runs, the best first.

    Runs without this result come last.
    """
    counts = Counter(label for run in runs for label in run.metrics)
    # The main metric is the first one among those that most runs have.
    main = max(counts, key=counts.__getitem__, default="")
    scored = [run for run in runs if main in run.metrics]
    is_greater_better = bool(scored) and best_of(scored[0].metrics[main]) is max
    scored.sort(key=lambda run: run.value(main), reverse=is_greater_better)
    return main, scored + [run for run in runs if main not in run.metrics]


def _lead(names: Sequence[str], runs: Sequence[RunRecord], main: str) -> str:
    """Describes the main result of the page in a sentence or two."""
    scored = [run for run in runs if main in run.metrics]
    if not scored:
        return "All scores are undefined." if runs[0].results else "There is no evaluation yet."
    metric, first = scored[0].metrics[main], scored[0].text(main)
    is_tuned = workdir.is_finetuning(scored[0].config) or LOWEST + metric.name in scored[0].values
    where = "" if is_tuned else " on held-out text"
    if len(scored) == 1:
        whose = f" of {names[0]}" if len(runs) > 1 else ""
        text = f"{main[0].upper()}{main[1:]}{whose}{where}: {first} after {_step(scored[0])}"
        baseline = scored[0].baseline(main)
        if baseline is not None:
            is_better = best_of(metric)(scored[0].value(main), baseline) != baseline
            words = ": ".join(filter(None, (metric.baseline_label, metric.text(baseline))))
            text += f", {'better' if is_better else 'no better'} than the baseline ({words})"
        return f"{text}."
    others = " to ".join(dict.fromkeys(run.text(main) for run in (scored[1], scored[-1])))
    text = f"Of {len(scored)} runs, {names[0]} has the best {main}{where}: {first}"
    text += f", against {others}."
    if len({run.baseline(main) for run in scored}) > 1:
        text += (
            " The baselines differ, so these runs were scored on different text or pieces, and "
            "their scores cannot be compared directly."
        )
    return text


def settings_of(runs: Sequence[RunRecord], main: str) -> tuple[list[str], list[list[str]]]:
    """Returns headers and rows of the scores of sweeps over seeds, the best sweep first."""
    headers, rows = [], []
    # A run of a sweep is in SWEEP/runs/NAME.
    first: dict[epath.Path, RunRecord] = {}
    for run in runs:
        first.setdefault(run.directory.parent.parent, run)
    for name, (directory, run) in zip(names_of(first), first.items(), strict=True):
        if main not in run.metrics or not (directory / workdir.SWEEP).exists():
            continue
        metric, full = run.metrics[main], run.panels[main].full or 1.0
        for setting in files.read_json(directory / workdir.SWEEP)["settings"]:
            headers = ["sweep", *(key.replace("_", " ") for key in setting)]
            values = [
                f"{x:g}" if key in _GRID else metric.text(x / full) for key, x in setting.items()
            ]
            rows.append([name, *values])
    return headers, rows


def _step(run: RunRecord) -> str:
    if not run.results:
        return f"{max((line['step'] for line in run.lines), default=0):,} steps (running)"
    return f"{run.results['step']:,} steps"


def _plot(title: str, runs: Sequence[RunRecord]) -> dict[str, str] | None:
    """Draws a figure of the runs that have a panel of this title; None if none has a value."""
    panels = [run.panels[title] for run in runs if title in run.panels]
    # Only what all runs have in common is marked.
    common = set.intersection(*(set(panel.row_lengths) for panel in panels))
    panel = panels[0]._replace(row_lengths=tuple(sorted(common)))
    lines = [run.lines if title in run.panels else [] for run in runs]
    if not any(has_points(panel, of_run) for of_run in lines):
        return None
    svg = panel_svg(panel, lines)
    return {"title": title, "full": f"{panel.full:g}", "axis": panel.axis, "svg": svg}


def facts_of(run: RunRecord, runs: Sequence[RunRecord]) -> dict[str, Cell]:
    """Returns the scores and the cost of one of the runs by their labels."""
    facts = {}
    for label, metric in run.metrics.items():
        if metric.percent_masked:
            # A figure shows it.
            continue
        best = best_of(metric)([other.value(label) for other in runs if label in other.metrics])
        note = ""
        if (baseline := run.baseline(label)) is not None:
            words = "baseline" if len(runs) > 1 else metric.baseline_label
            note = f"{words} {metric.text(baseline)}"
        is_best = len(runs) > 1 and run.value(label) == best
        facts[label] = Cell(run.text(label), note, is_best)
    if len(runs) > 1 and not workdir.is_finetuning(run.config):
        terms = make_terms(run.config.objective.terms, run.config.objective)
        model = PreTrainingModel(BertConfig(**run.config.model), terms)
        facts["parameters"] = Cell(with_prefix(num_parameters(model), ""))
    facts["steps"] = Cell(_step(run).replace(" steps", ""))
    if "best_step" in run.results:
        facts["best step"] = Cell(f"{run.results['best_step']:,}")
    return facts | {label: Cell(text) for label, text in cost(run).items()}


def _masks(run: RunRecord) -> list[list[tuple[str, dict[str, Any]]]]:
    """Lists held-out texts, each with the guesses of a few evaluations, the last one among them.

    The texts and their masks depend on the sequence length; the last evaluation's are shown.
    """
    filled = {x["step"]: x[_MASKS] for x in run.lines if x.get(_MASKS)}
    if not filled:
        return []
    last = [sample["texts"] for sample in filled[max(filled)]]
    steps = [step for step in filled if [sample["texts"] for sample in filled[step]] == last]
    stride = -(-len(steps) // _MASK_STEPS)
    steps = steps[::-stride][::-1]
    return [[(f"{step:,}", filled[step][i]) for step in steps] for i in range(len(last))]


def _before(run: RunRecord) -> list[list[str]]:
    """Makes a table of both texts, held-out and other, before and after the training."""
    columns = {
        f"{text}, {when}": (values, prefix)
        for text, prefix in (("held-out text", ""), ("other text", OTHER_TEXT))
        for when, values in (("initial weights", run.results.get(BEFORE, {})), ("end", run.results))
        if f"{prefix}num_sequences" in values
    }
    rows = [
        [label, *(metric.text(values[prefix + metric.name]) for values, prefix in columns.values())]
        for label, metric in run.metrics.items()
        if all(prefix + metric.name in values for values, prefix in columns.values())
    ]
    return [["", *columns], *rows] if len(columns) > 1 else []


def _sources(run: RunRecord) -> list[list[str | Cell]]:
    by_source = run.results.get(BY_SOURCE, {})
    # Some results are unknown for a source, such as those that need the length of its tokens.
    metrics = {
        label: metric
        for label, metric in run.metrics.items()
        if all(metric.name in values for values in by_source.values())
    }
    rows = []
    for source, values in by_source.items():
        cells = []
        for metric in metrics.values():
            baseline = values.get(metric.baseline)
            note = "" if baseline is None else f"baseline {metric.text(baseline)}"
            cells.append(Cell(metric.text(values[metric.name]), note))
        rows.append([source, *cells])
    return [["source", *metrics], *rows] if rows else []


def _classes(run: RunRecord) -> list[list[str]]:
    """Makes a table of the scores of each class; with few classes, of the confusions too."""
    classes = run.results.get(CLASSES, [])
    if not classes:
        return []
    names = [row["class"] for row in classes]
    confused = names if "predicted" in classes[0] and len(names) <= _MAX_CONFUSED else []
    rows = [["class", "precision", "recall", "F1", "rows", *(f"as {name}" for name in confused)]]
    for row in classes:
        scores = (f"{row[name]:.1%}" for name in ("precision", "recall", "f1"))
        counts = (f"{row['predicted'].get(name, 0):,}" for name in confused)
        rows.append([row["class"], *scores, f"{row['support']:,}", *counts])
    return rows


def _corpus(run: RunRecord) -> dict[str, Any]:
    reports = run.results.get("corpus")
    if not reports:
        return {}
    tables = []
    for found in filter(None, (corpus_report.table(reports), corpus_report.source_table(reports))):
        headers = [str(column.header) for column in found.columns]
        tables.append([headers, *zip(*(column.cells for column in found.columns), strict=True)])
    return {"tables": tables, "warnings": corpus_report.warnings(reports)}


def _differences(runs: Sequence[RunRecord]) -> list[list[str]]:
    values = [dict(config_lib.flatten(config_lib.to_dict(run.config))) for run in runs]
    # A run of a sweep has the values of one point as its own sweep.
    keys = {key for flat in values for key in flat if not key.startswith("sweep.")}
    rows = [[key, *(str(flat.get(key, "")) for flat in values)] for key in sorted(keys)]
    return [row for row in rows if len(set(row[1:])) > 1]
