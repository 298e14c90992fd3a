"""Plots the metrics of runs over the steps: WORKDIR/curves.png and the panels of the report."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from bert_jax.base import files
from bert_jax.objectives.term import Term
from bert_jax.training.metrics import EVALUATION_PREFIX, score_name

_NOTE = (
    "Training has the run's own masks and dropout. Held-out values have the same masks in all runs."
)
# The prefixes of the names of the lowest and the highest result over seeds.
LOWEST, HIGHEST = "lowest ", "highest "
# The prefix of the names of a first stage's scores, which the reranker does not change.
FIRST_STAGE = "first_"
# Also the symbols of page.html.
_MARKERS = "osD^vPX*"
_MAX_MARKERS, _MAX_POINTS = 20, 1000
# Stands for the color of a run in an SVG, a variable of the page.
_COLOR = "#ab{:04x}"
# A panel's width and height in inches, at 72 points each.
_PANEL = (5.6, 3.0)


class Panel(NamedTuple):
    """One quantity, plotted over the steps.

    Attributes:
      name: The key in metrics.jsonl; held-out values have the prefix `eval_`.
      baseline: The key of a baseline of the held-out values; empty for none.
      full: The value that is 100 %; 0 for a quantity that is not a percentage.
      from_zero: Whether the axis begins at 0 rather than at the data.
      row_lengths: The steps after which rows have another length, and this length in tokens.
      points: For a quantity that is not plotted over the steps: pairs of a horizontal position and
        the key of a held-out value, of which the newest is shown.
      axis: The label of the horizontal axis.
    """

    title: str
    name: str
    baseline: str = ""
    full: float = 0.0
    from_zero: bool = False
    row_lengths: tuple[tuple[int, int], ...] = ()
    points: tuple[tuple[float, str], ...] = ()
    axis: str = "step"


_OF_ANY_RUN = (
    Panel("learning rate", "learning_rate", from_zero=True),
    Panel("gradient norm", "grad_norm", from_zero=True),
    Panel("speed (sequences/s)", "sequences_per_second", from_zero=True),
)


def pretraining_panels(terms: Sequence[Term], texts: Sequence[str] = ()) -> tuple[Panel, ...]:
    """Makes a panel for each training metric, and for learning rate, gradient norm and speed.

    Each of `texts`, such as the source of a part of the held-out text, has panels of its losses. A
    term whose loss is measured at several masking rates has a panel of the loss by rate.
    """
    metrics = [metric for term in terms for metric in term.metrics if metric.in_training]
    panels = [Panel(m.label, m.name, m.baseline, float(m.kind == "accuracy")) for m in metrics]
    for metric in metrics:
        if metric.kind == "loss" and metric.in_progress:
            for text in texts:
                names = f"{text}_{metric.name}", f"{text}_{metric.baseline}"
                panels.append(Panel(f"{metric.label}, {text}", *names))
    for term in terms:
        points = tuple((m.percent_masked, m.name) for m in term.metrics if m.percent_masked)
        if points:
            title, name = "loss of a masked token (nats)", f"{term.name}_loss_masked"
            baseline, axis = term.metrics[0].baseline, "masked tokens (%)"
            panels.append(Panel(title, name, baseline, points=points, axis=axis))
    return (*panels, *_OF_ANY_RUN)


def finetuning_panels(metric: str, splits: Sequence[str], full: float) -> tuple[Panel, ...]:
    # Only a reranker's scores have those of a first stage beside them.
    named = ((x, *(score_name(splits, x, y + metric) for y in ("", FIRST_STAGE))) for x in splits)
    scores = (Panel(f"{x} {metric}", name, first, full) for x, name, first in named)
    accuracy = [] if metric == "accuracy" else [Panel("accuracy", "accuracy", full=1.0)]
    return (*scores, *accuracy, Panel("loss", "loss"), *_OF_ANY_RUN)


def has_points(panel: Panel, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether the lines of metrics.jsonl have a value for the panel."""
    lines = _lines_of(panel, lines)
    return bool(_points(panel.name, lines) or _points(EVALUATION_PREFIX + panel.name, lines))


def write_curves(
    lines: Sequence[Mapping[str, Any]], output: epath.PathLike, panels: Sequence[Panel]
) -> None:
    """Plots the lines of metrics.jsonl over the steps, two panels in a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    panels = [panel for panel in panels if has_points(panel, lines)] or panels[:1]
    rows = -(-len(panels) // 2)
    figure = _new_figure(2, rows, note=0.25)
    FigureCanvasAgg(figure)
    all_axes = [*figure.subplots(rows, 2, squeeze=False).flat]
    for panel, axes in zip(panels, all_axes, strict=False):
        _draw(axes, panel, [lines])
        axes.set_title(panel.title, loc="left", parse_math=False)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(fontsize="small")
    for axes in all_axes[len(panels) :]:
        axes.remove()
    figure.supxlabel(_NOTE, fontsize="small")
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100)
    files.write_whole(output, image.getvalue())


def panel_svg(panel: Panel, runs: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Draws the panel as an SVG for a page, whose variables color the curves.

    Each curve is a group with the classes "run" and "training", "held-out" or "baseline", and with
    the number of its run in `data-run`. `data-frame` has the left, right, bottom and top of the
    axes in the SVG's units, and `data-limits` their values. The bytes are the same in each call.
    """
    import matplotlib

    figure = _new_figure(1, 1)
    axes = figure.subplots()
    _draw(axes, panel, runs, color=_COLOR)
    figure.patch.set_visible(False)
    image = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bert_jax"}):
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(image, format="svg", transparent=True, metadata=metadata)
    left, bottom, right, top = axes.bbox.extents
    height = figure.bbox.height
    frame = f"{left:.2f} {right:.2f} {height - bottom:.2f} {height - top:.2f}"
    limits = " ".join(f"{x:.6g}" for x in (*axes.get_xlim(), *axes.get_ylim()))
    text = image.getvalue().decode()
    text = text[text.index("<svg") :].replace(
        "<svg", f'<svg data-frame="{frame}" data-limits="{limits}"', 1
    )
    text = re.sub("#ab([0-9a-f]{4})", lambda match: f"var(--run{int(match[1], 16)})", text)
    text = text.replace("#000000", "var(--soft)").replace("#b0b0b0", "var(--line)")
    # Several figures of a page would share the other ids, to which nothing refers.
    text = re.sub(r'<g id="(?!run)\w+">', "<g>", text)
    return re.sub(r'<g id="run(\d+)-([a-z-]+)">', r'<g class="run \2" data-run="\1">', text)


def _new_figure(columns: int, rows: int, note: float = 0.0) -> Any:
    """Makes a figure with room for this number of panels, and inches for a note below them."""
    # Imported late: matplotlib would delay the first step of a run. pyplot is not used, because
    # its global state and display belong to the user's program.
    from matplotlib.figure import Figure

    width, height = columns * _PANEL[0], rows * _PANEL[1] + note
    figure = Figure(figsize=(width, height), dpi=72)
    # Inches for labels. A layout that measures every text would take seconds for a page.
    left, right, bottom, top = 0.75, 0.15, 0.55, 0.3
    figure.subplots_adjust(
        left=left / width,
        right=1 - right / width,
        bottom=(bottom + note) / height,
        top=1 - top / height,
        wspace=(left + right) / (_PANEL[0] - left - right),
        hspace=(bottom + top) / (_PANEL[1] - bottom - top),
    )
    return figure


def _draw(
    axes: Any, panel: Panel, runs: Sequence[Sequence[Mapping[str, Any]]], color: str = "C{}"
) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    for number, lines in enumerate(_lines_of(panel, lines) for lines in runs):
        curves = {
            "training": _points(panel.name, lines),
            "held-out": _points(EVALUATION_PREFIX + panel.name, lines),
            "lowest": _points(EVALUATION_PREFIX + LOWEST + panel.name, lines),
            "highest": _points(EVALUATION_PREFIX + HIGHEST + panel.name, lines),
            "baseline": _points(EVALUATION_PREFIX + panel.baseline, lines),
        }
        marker = {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 5}
        marker["markevery"] = -(-len(curves["held-out"]) // _MAX_MARKERS) or 1
        styles = {
            "training": {"linewidth": 1.0, "alpha": 0.3 if len(runs) > 1 else 0.6}
            if curves["held-out"]
            else {},
            "held-out": {"linewidth": 1.8, **marker},
            "lowest": {"linewidth": 1.0, "alpha": 0.6},
            "highest": {"linewidth": 1.0, "alpha": 0.6},
            # The baseline changes with the length of the rows, between two evaluations.
            "baseline": {"linestyle": ":", "drawstyle": "steps-pre"},
        }
        if curves["baseline"]:
            # The baseline also holds before the first evaluation.
            curves["baseline"].insert(0, (lines[0]["step"], curves["baseline"][0][1]))
        for kind, points in curves.items():
            if points:
                steps, values = zip(*points, strict=True)
                (line,) = axes.plot(
                    steps, values, color=color.format(number), label=kind, **styles[kind]
                )
                line.set_gid(f"run{number}-{kind}")
    first, last = axes.dataLim.intervalx
    for place, (step, length) in enumerate(panel.row_lengths):
        if first < step < last:
            axes.axvline(step, color="black", linewidth=0.7)
            # Labels of neighbors are one above the other.
            height, side = 1.02 + 0.06 * (place % 2), "right" if 2 * step > first + last else "left"
            style = {"ha": side, "size": "small", "transform": axes.get_xaxis_transform()}
            axes.text(step, height, f"rows of {length:,} tokens from here", **style)
    if panel.from_zero:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(PercentFormatter(panel.full) if panel.full else "{x:g}")
    axes.set_xlabel(panel.axis)
    axes.grid(alpha=0.3)


def _lines_of(panel: Panel, lines: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Returns the lines of metrics.jsonl or, for a panel with points, a line for each of them."""
    if not panel.points:
        return lines
    last = {name: value for line in lines for name, value in line.items()}
    ours, baseline = EVALUATION_PREFIX + panel.name, EVALUATION_PREFIX + panel.baseline
    return [
        {"step": x, ours: last.get(EVALUATION_PREFIX + name), baseline: last.get(baseline)}
        for x, name in panel.points
    ]


def _points(name: str, lines: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Returns steps and values; if there are too many to see, every nth up to the last."""
    points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    stride = -(-len(points) // _MAX_POINTS) or 1
    return points[::-stride][::-1]
