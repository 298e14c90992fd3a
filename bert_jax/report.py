"""Writes an HTML page about one or several runs, in one file without network access.

    python -m bert_jax.report --workdir=DIR[,DIR2,...] --output=page.html \
        [--fill_mask='The people of the United [MASK] are free.']

The page has the results beside their baselines, the curves, the cost, the corpus report and the
config of each run, of pre-training or fine-tuning. Pre-training runs also have guesses for masked
words of held-out text over time. With --fill_mask, the page shows what each kept checkpoint
predicts for a mask of your own. Every run writes a page of its own at its end.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, NamedTuple

from absl import flags
from etils import epath
from ml_collections import ConfigDict

from bert_jax import cli, files, workdir
from bert_jax import config as config_lib
from bert_jax.command_line import UsageError
from bert_jax.data import corpus_report
from bert_jax.objectives.language_model import FILLED_MASKS
from bert_jax.objectives.term import Metric
from bert_jax.pretraining import make_objective
from bert_jax.training.curves import (
    Panel,
    RunCurves,
    draw_curves,
    finetuning_panels,
    pretraining_panels,
)
from bert_jax.training.metrics import EVALUATION_PREFIX, read_metrics
from bert_jax.training.stages import resolve_stages, stage_of

_PREDICTIONS = 3
_ROWS_OF_MASKS = 12


class Run(NamedTuple):
    """What a work directory holds about its run."""

    directory: epath.Path
    config: ConfigDict
    results: Mapping[str, Any]
    lines: list[dict[str, Any]]
    scores: Mapping[str, str]
    panels: Sequence[Panel]


def read_run(directory: epath.PathLike) -> Run:
    """Reads a work directory; the results are empty before the run's end.

    Raises:
      UserError: It holds no run.
    """
    config, path = workdir.load_config(directory), epath.Path(directory)
    lines, results = read_metrics(path), {}
    if (path / workdir.RESULTS).exists():
        results = files.read_json(path / workdir.RESULTS)
    if workdir.is_finetuning(config):
        of_splits = {name: scores for name, scores in results.items() if isinstance(scores, dict)}
        panels = finetuning_panels(
            results.get("metric", ""),
            [split for split in of_splits if split.startswith("validation")],
            results.get("best_step", 0),
            has_accuracy=any("accuracy" in line for line in lines),
        )
        scores = {
            f"{split} {name}": f"{value:.4f}"
            for split, values in of_splits.items()
            for name, value in values.items()
        }
    else:
        terms = make_objective(config).terms
        panels = pretraining_panels(terms)
        # ELECTRA's generator has the same metrics as a masked-LM term.
        scores = {
            metric.label: _with_baseline(metric, results)
            for term in terms
            for metric in term.metrics
            if metric.name in results
        }
    return Run(path, config, results, lines, scores, panels)


def write_page(directory: epath.PathLike) -> None:
    """Writes report.html into a work directory."""
    text = page([read_run(directory)])
    files.write_whole(epath.Path(directory) / workdir.REPORT, text.encode())


def page(runs: Sequence[Run], mask_texts: Sequence[str] = ()) -> str:
    """Returns the HTML of a page about these runs.

    Args:
      runs: The runs, side by side.
      mask_texts: Texts with a mask, which every kept checkpoint fills.
    """
    names = _names(runs)
    named = list(zip(names, runs, strict=True))
    curves = draw_curves(
        [RunCurves(name, run.lines, run.panels) for name, run in named], "svg"
    ).decode()
    parts = [
        _section("Results on held-out data", _table(["", *names], _result_rows(runs))),
        _section("Curves", curves[curves.index("<svg") :]),
        _section("Cost", _table(["", *names], _cost_rows(runs))),
    ]
    for text in mask_texts:
        parts.append(_section(text, *(_filled(name, run, text) for name, run in named)))
    for name, run in named:
        parts += _masks_over_time(name, run) + _corpus(name, run)
    if len(runs) > 1:
        parts.append(_section("Differences of the configs", _differences(names, runs)))
    for name, run in named:
        text = escape(json.dumps(config_lib.to_dict(run.config), indent=2))
        parts.append(
            f"<details><summary>Config of {escape(name)}</summary><pre>{text}</pre></details>"
        )
    template = resources.files("bert_jax").joinpath("report.html").read_text("utf-8")
    title = escape(f"Report: {', '.join(names)}")
    return template.replace("__TITLE__", title).replace("__BODY__", "\n".join(parts))


def _names(runs: Sequence[Run]) -> list[str]:
    """Returns the last parts of the directories, or the whole paths if those are not unique."""
    names = [run.directory.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.directory) for run in runs]


def _result_rows(runs: Sequence[Run]) -> list[list[str]]:
    rows = [["step", *map(_last_step, runs)]]
    if any("best_step" in run.results for run in runs):
        best = (run.results.get("best_step") for run in runs)
        rows.append(["best step", *("" if x is None else f"{x:,}" for x in best)])
    labels = dict.fromkeys(label for run in runs for label in run.scores)
    return rows + [[label, *(run.scores.get(label, "") for run in runs)] for label in labels]


def _last_step(run: Run) -> str:
    if not run.results:
        return "running"
    early = " (stopped early)" if run.results.get("stopped_early") else ""
    return f"{run.results['step']:,}{early}"


def _with_baseline(metric: Metric, results: Mapping[str, Any]) -> str:
    baseline = results.get(metric.baseline)
    text = metric.text(results[metric.name])
    return text if baseline is None else f"{text} (baseline {metric.text(baseline)})"


def _cost_rows(runs: Sequence[Run]) -> list[list[str]]:
    costs = [_cost(run) for run in runs]
    return [[name, *(cost[name] for cost in costs)] for name in costs[0]]


def _cost(run: Run) -> dict[str, str]:
    """Adds up the logged lines. Lines after an interruption count the time of their steps only."""
    before, seconds, sequences, flops = 0, 0.0, 0, 0.0
    stages = [] if workdir.is_finetuning(run.config) else resolve_stages(run.config)
    for line in run.lines:
        if rate := line.get("sequences_per_second"):
            of_step = stage_of(stages, line["step"]) if stages else run.config.train
            count = (line["step"] - before) * of_step.batch_size
            before, sequences = line["step"], sequences + count
            seconds += count / rate
            flops += line["flops_per_second"] * count / rate
    return {
        "training time": f"{seconds / 3600:,.2f} h",
        "sequences": f"{sequences:,}",
        "model FLOPs": f"{flops:.3g}",
        "FLOP/s": f"{flops / seconds:.3g}" if seconds else "",
    }


def _filled(name: str, run: Run, text: str) -> str:
    """Returns a table of the predictions of each kept checkpoint for the first mask of a text."""
    # The package's inference loads slowly, and most pages need none.
    import bert_jax

    rows = []
    for step in workdir.saved_steps(run.directory / workdir.CHECKPOINTS):
        first, *_ = bert_jax.load(str(run.directory), step=step).fill_mask(text)
        guesses = [f"{x.token} {x.probability:.1%}" for x in first[:_PREDICTIONS]]
        rows.append([f"{step:,}", *guesses])
    return _table([f"step of {name}", *[""] * _PREDICTIONS], rows)


def _masks_over_time(name: str, run: Run) -> list[str]:
    """Returns tables of the held-out masks that evaluations filled, one for each sequence length.

    The rows of text, and with them the masks, depend on the sequence length.
    """
    tables: dict[tuple[str, ...], dict[int, list[str]]] = {}
    for line in run.lines:
        masks = line.get(EVALUATION_PREFIX + FILLED_MASKS, ())
        titles = tuple(f"{mask['text']} ({mask['original']})" for mask in masks)
        guesses = [f"{mask['guess']} {mask['probability']:.1%}" for mask in masks]
        tables.setdefault(titles, {})[line["step"]] = guesses
    caption = (
        "<p>The guess for the first mask and its probability. The original is in parentheses.</p>"
    )
    parts = []
    for titles, guesses in tables.items():
        if titles:
            rows = [[f"{step:,}", *cells] for step, cells in guesses.items()]
            # The last one and some of those before it, evenly spaced.
            stride = -(-len(rows) // _ROWS_OF_MASKS)
            table = _table(["step", *titles], rows[::-stride][::-1])
            parts.append(_section(f"Masks of held-out text: {name}", caption, table))
    return parts


def _corpus(name: str, run: Run) -> list[str]:
    reports = run.results.get("corpus")
    if not reports:
        return []
    table = corpus_report.table(reports)
    headers = [str(column.header) for column in table.columns]
    rows = zip(*(list(column.cells) for column in table.columns), strict=True)
    found = "".join(f"<p>Warning: {escape(text)}</p>" for text in corpus_report.warnings(reports))
    return [_section(f"{table.title}: {name}", _table(headers, [list(row) for row in rows]), found)]


def _differences(names: Sequence[str], runs: Sequence[Run]) -> str:
    values = [dict(config_lib.flatten(config_lib.to_dict(run.config))) for run in runs]
    keys = sorted({key for flat in values for key in flat})
    rows = [[key, *(str(flat.get(key, "")) for flat in values)] for key in keys]
    return _table(["", *names], [row for row in rows if len(set(row[1:])) > 1])


def _section(title: str, *content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n" + "\n".join(content)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str) -> Callable[[Sequence[str]], str]:
        return lambda cells: f"<tr>{''.join(f'<{tag}>{escape(c)}</{tag}>' for c in cells)}</tr>"

    return f"<table>{line('th')(headers)}{''.join(map(line('td'), rows))}</table>"


def define_flags() -> None:
    """Defines the flags of the command line."""
    flags.DEFINE_list("workdir", [], "Work directories of the runs, separated by commas.")
    flags.DEFINE_string("output", "", "The HTML file to write.")
    flags.DEFINE_multi_string("fill_mask", [], "A text with [MASK]; may be repeated.")


def main(_) -> None:
    args = flags.FLAGS
    if not args.workdir or not args.output:
        raise UsageError("--workdir=DIR and --output=FILE.html must be given")
    path = files.open_path(args.output, "--output")
    text = page([read_run(directory) for directory in args.workdir], args.fill_mask)
    files.write_whole(path, text.encode())
    print(f"written to {path}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
