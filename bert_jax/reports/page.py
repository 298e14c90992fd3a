"""The HTML page about one or several runs, in one file that needs no network."""

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from typing import Any

from etils import epath

from bert_jax import config as config_lib
from bert_jax.base import files
from bert_jax.objectives.language_model import FILLED_TEXTS
from bert_jax.objectives.term import PER_CHARACTER
from bert_jax.reports import corpus_report
from bert_jax.reports.curves import has_points, panel_svg, write_curves
from bert_jax.reports.html import Html, colored_name, document, section, table
from bert_jax.reports.record import Run, best_of, cost, read_runs
from bert_jax.training import workdir
from bert_jax.training.metrics import BEFORE, BY_SOURCE, EVALUATION_PREFIX, OTHER_TEXT

_PREDICTIONS = 3
# The evaluations whose filled masks are shown.
_MASK_STEPS = 3
# The values of a setting in sweep.json that are not scores.
_GRID = ("learning_rate", "batch_size", "seeds", "diverged")
_MASKS = EVALUATION_PREFIX + FILLED_TEXTS
_CURVES_NOTE = """<p class=note>Thin: training, averaged over the steps since the last point, with
the run's own {}dropout. With symbols: {}. Both may differ for the same model. Dotted: a baseline
without context. Point at a curve to read its values.</p>"""
_HELD_OUT = "held-out text, with the same masks in all runs"
_MASKS_NOTE = """<p class=note>Each mask shows the guess. A wrong guess is struck out, and the
original follows. Some other words are replaced at random, as in training.</p>"""


def write_pages(directory: epath.PathLike) -> None:
    """Writes curves.png, for a run, and report.html into the work directory of a run or sweep."""
    path, runs = epath.Path(directory), read_runs(directory)
    if len(runs) == 1:
        write_curves(runs[0].lines, path / workdir.CURVES, [*runs[0].panels.values()])
    files.write_whole(path / workdir.REPORT, page(runs).encode())


def page(runs: Sequence[Run], mask_texts: Sequence[str] = ()) -> str:
    """Writes the HTML of a page about these runs, the best first.

    Args:
      runs: The runs.
      mask_texts: Texts with a mask, which every kept checkpoint fills.
    """
    main, runs = _ranked(runs)
    names, is_one = _names(runs), len(runs) == 1
    named = list(zip(names, runs, strict=True))
    # The figure of the main result comes first.
    titles = dict.fromkeys(title for run in runs for title in run.panels)
    plots = [_plot(title, runs) for title in sorted(titles, key=lambda title: title != main)]
    plots, num_top = list(filter(None, plots)), 1 if is_one else 2
    summary = _runs_table(names, runs)
    legend = "".join(
        f"<span data-run={i}>{colored_name(names, i)}</span>" for i in range(len(runs))
    )
    parts = [
        f"<h1>{escape(', '.join(names) if len(runs) < 4 else f'{len(runs)} runs')}</h1>",
        f"<p class=lead>{escape(_lead(names, runs, main))}</p>",
        "" if is_one else f"<nav>{legend}</nav>",
        f"<div class=top>{''.join(plots[:num_top])}{summary if is_one else ''}</div>",
        "" if is_one else summary,
        section("Curves", _curves_note(runs), f"<div class=plots>{''.join(plots[num_top:])}</div>"),
    ]
    if not is_one:
        parts += _settings(runs, main)
    for text in mask_texts:
        parts.append(section(text, *(_filled(name, run, text) for name, run in named)))
    parts += _each("Masked words of held-out text", named, _masks, folded=not is_one)
    parts += _each("Initial weights and other text", named, _before, folded=not is_one)
    parts += _each("Held-out documents by source", named, _sources, folded=not is_one)
    parts += _each("What the model sees of the corpus", named, _corpus, folded=not is_one)
    if not is_one:
        parts.append(section("Differences of the configs", differences(names, runs)))
    parts += _each("Config", named, _config, folded=True)
    title = f"Report: {', '.join(names)}"
    return document(title, "\n".join(parts), len(runs))


def _names(runs: Sequence[Run]) -> list[str]:
    """Names runs by the last parts of their directories, or if two are equal, by more parts."""
    names = [run.directory.name for run in runs]
    if len(set(names)) == len(names):
        return names
    paths = [run.directory.parts for run in runs]
    common = len(os.path.commonprefix(paths))
    return ["/".join(parts[common:]) for parts in paths]


def _ranked(runs: Sequence[Run]) -> tuple[str, list[Run]]:
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


def _lead(names: Sequence[str], runs: Sequence[Run], main: str) -> str:
    """Describes the main result of the page in a sentence or two."""
    scored = [run for run in runs if main in run.metrics]
    if not scored:
        return "There is no evaluation yet."
    metric, first = scored[0].metrics[main], scored[0].text(main)
    where = "" if workdir.is_finetuning(scored[0].config) else " on held-out text"
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


def _settings(runs: Sequence[Run], main: str) -> list[str]:
    """Makes a table for each sweep, with the spread of the main score over the seeds."""
    parts = []
    # A run of a sweep is in SWEEP/runs/NAME.
    for path in dict.fromkeys(run.directory.parent.parent / workdir.SWEEP for run in runs):
        if path.exists():
            metric, full = runs[0].metrics[main], runs[0].panels[main].full or 1.0
            settings = files.read_json(path)["settings"]
            rows = [
                [f"{x:g}" if name in _GRID else metric.text(x / full) for name, x in each.items()]
                for each in settings
            ]
            headers = [name.replace("_", " ") for name in settings[0]]
            parts.append(section("Settings of the sweep, over seeds", table(headers, rows)))
    return parts


def _step(run: Run) -> str:
    if not run.results:
        return f"{max((line['step'] for line in run.lines), default=0):,} steps (running)"
    return f"{run.results['step']:,} steps"


def _plot(title: str, runs: Sequence[Run]) -> str:
    """Draws a figure of the runs that have a panel of this title; "" if none has a value."""
    panel = next(run.panels[title] for run in runs if title in run.panels)
    lines = [run.lines if title in run.panels else [] for run in runs]
    if not any(has_points(panel, of_run) for of_run in lines):
        return ""
    caption = f"<figcaption>{escape(title)}</figcaption>"
    return f'<figure data-full="{panel.full:g}">{caption}{panel_svg(panel, lines)}</figure>'


def _runs_table(names: Sequence[str], runs: Sequence[Run]) -> str:
    """Makes a table with a row for each run; for a single run, with a row for each value."""
    facts = []
    for run in runs:
        with files.naming(run.directory / workdir.RESULTS):
            facts.append(_facts(run, runs))
    labels = dict.fromkeys(label for run in runs for label in run.metrics)
    labels |= dict.fromkeys(label for of_run in facts for label in of_run)
    if len(runs) == 1:
        return table((), [[label, facts[0][label]] for label in labels])
    rows = [
        [colored_name(names, number), *(of_run.get(label, "") for label in labels)]
        for number, of_run in enumerate(facts)
    ]
    return table(["run", *labels], rows)


def _facts(run: Run, runs: Sequence[Run]) -> dict[str, str]:
    """Returns the scores and the cost of a run by their labels; the best score is bold."""
    facts: dict[str, str] = {}
    for label, metric in run.metrics.items():
        best = best_of(metric)([other.value(label) for other in runs if label in other.metrics])
        cell = run.text(label)
        if len(runs) > 1 and run.value(label) == best:
            cell = f"<b>{cell}</b>"
        if (baseline := run.baseline(label)) is not None:
            words = "baseline" if len(runs) > 1 else metric.baseline_label
            cell += f"<br><small>{escape(words)} {metric.text(baseline)}</small>"
        facts[label] = Html(cell)
    facts["steps"] = _step(run).replace(" steps", "")
    if "best_step" in run.results:
        facts["best step"] = f"{run.results['best_step']:,}"
    return facts | cost(run)


def _filled(name: str, run: Run, text: str) -> str:
    """Makes a table of each kept checkpoint's predictions for the first mask of a text."""
    # The package's inference loads slowly, and most pages need none.
    import bert_jax

    rows = []
    for step in workdir.saved_steps(run.directory / workdir.CHECKPOINTS):
        first, *_ = bert_jax.load(str(run.directory), step=step).fill_mask(text)
        guesses = [f"{x.token} {x.probability:.1%}" for x in first[:_PREDICTIONS]]
        rows.append([f"{step:,}", *guesses])
    return table([f"step of {name}", *[""] * _PREDICTIONS], rows)


def _masks(run: Run) -> str:
    """Shows held-out texts with the guesses of a few evaluations, the last one among them.

    The texts and their masks depend on the sequence length; the last evaluation's are shown.
    """
    filled = {x["step"]: x[_MASKS] for x in run.lines if x.get(_MASKS)}
    if not filled:
        return ""
    last = [sample["texts"] for sample in filled[max(filled)]]
    steps = [step for step in filled if [sample["texts"] for sample in filled[step]] == last]
    stride = -(-len(steps) // _MASK_STEPS)
    steps = steps[::-stride][::-1]
    samples = (
        "".join(f"<p><b>step {step:,}</b> {_filled_text(filled[step][i])}</p>" for step in steps)
        for i in range(len(last))
    )
    return _MASKS_NOTE + "".join(f"<div class=sample>{sample}</div>" for sample in samples)


def _filled_text(sample: Mapping[str, Any]) -> str:
    first, *others = map(escape, sample["texts"])
    for mask, text in zip(sample["masks"], others, strict=True):
        guess, original = escape(mask["guess"]), escape(mask["original"])
        title = f'title="{mask["probability"]:.1%}"'
        if guess == original:
            first += f" <mark class=right {title}>{guess}</mark> {text}"
        else:
            first += f" <mark {title}><del>{guess}</del> <ins>{original}</ins></mark> {text}"
    return first


def _before(run: Run) -> str:
    """Shows the results on both texts, held-out and other, before and after the training."""
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
    return table(["", *columns], rows) if len(columns) > 1 else ""


def _sources(run: Run) -> str:
    """Shows the results of each source."""
    by_source = run.results.get(BY_SOURCE, {})
    # The length of the tokens of a source is unknown.
    metrics = {label: x for label, x in run.metrics.items() if x.kind != PER_CHARACTER}
    headers, rows = ["source", *metrics], []
    for source, values in by_source.items():
        cells = []
        for metric in metrics.values():
            baseline = values.get(metric.baseline)
            words = "" if baseline is None else f"baseline {metric.text(baseline)}"
            cells.append(Html(f"{metric.text(values[metric.name])}<br><small>{words}</small>"))
        rows.append([source, *cells])
    return table(headers, rows) if rows else ""


def _corpus(run: Run) -> str:
    reports = run.results.get("corpus")
    if not reports:
        return ""
    tables = ""
    for found in filter(None, (corpus_report.table(reports), corpus_report.source_table(reports))):
        headers = [str(column.header) for column in found.columns]
        rows = zip(*(list(column.cells) for column in found.columns), strict=True)
        tables += table(headers, [list(row) for row in rows])
    warnings = corpus_report.warnings(reports)
    return tables + "".join(f"<p>Warning: {escape(text)}</p>" for text in warnings)


def _config(run: Run) -> str:
    return f"<pre>{escape(json.dumps(config_lib.to_dict(run.config), indent=2))}</pre>"


def _curves_note(runs: Sequence[Run]) -> str:
    if all(workdir.is_finetuning(run.config) for run in runs):
        return _CURVES_NOTE.format("", "validation rows")
    return _CURVES_NOTE.format("masks and ", _HELD_OUT)


def differences(names: Sequence[str], runs: Sequence[Run], without: Collection[str] = ()) -> str:
    """Makes a table of the keys whose values differ between the configs of the runs.

    Args:
      without: Keys that are left out.
    """
    values = [dict(config_lib.flatten(config_lib.to_dict(run.config))) for run in runs]
    # A run of a sweep has the values of one point as its own sweep.
    keys = {key for flat in values for key in flat if not key.startswith("sweep.")}
    rows = [
        [key, *(str(flat.get(key, "")) for flat in values)] for key in sorted(keys - {*without})
    ]
    changed = table(["", *names], [row for row in rows if len(set(row[1:])) > 1])
    return f"<div class=keys>{changed}</div>"


def _each(
    title: str, named: Sequence[tuple[str, Run]], content: Callable[[Run], str], *, folded: bool
) -> list[str]:
    """Makes a section with the content of each run; [] if no run has any."""
    blocks = []
    for name, run in named:
        with files.naming(run.directory / workdir.RESULTS):
            blocks += [(escape(name), block)] if (block := content(run)) else []
    if folded:
        fold = "<details><summary>{}</summary>{}</details>"
        blocks = [(name, fold.format(name, block)) for name, block in blocks]
    return [section(title, *(block for _, block in blocks))] if blocks else []
