"""Plots the metrics of a run in one figure, WORKDIR/curves.png."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from bert_jax import files
from bert_jax.objectives.term import Term
from bert_jax.training.metrics import EVALUATION_PREFIX, read_metrics

_HELD_OUT: dict[str, Any] = {"marker": "o"}
_BASELINE: dict[str, Any] = {"linestyle": ":", "color": "gray"}


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel of the figure, plotted over the steps.

    Attributes:
      title: The title.
      curves: Label and matplotlib style by the name in metrics.jsonl; names without a value
        are left out.
      unit: The unit of the values; empty for none.
      limits: The range of the values; None means a little beyond the data.
      marked_step: A step to mark with a vertical line, or None.
    """

    title: str
    curves: Mapping[str, tuple[str, Mapping[str, Any]]]
    unit: str = ""
    limits: tuple[float | None, float | None] = (None, None)
    marked_step: int | None = None


_RATE = Panel("Learning rate", {"learning_rate": ("learning rate", {})}, limits=(0, None))
_SPEED = Panel(
    "Speed", {"sequences_per_second": ("sequences/s", {})}, "sequences/s", limits=(0, None)
)


def pretraining_panels(terms: Sequence[Term]) -> tuple[Panel, ...]:
    """Returns a panel per kind of training metric, and one each for learning rate and speed."""
    metrics = [(term, metric) for term in terms for metric in term.metrics if metric.in_training]
    panels = []
    for kind in dict.fromkeys(metric.kind for _, metric in metrics):
        curves: dict[str, tuple[str, Mapping[str, Any]]] = {}
        baselines: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for term, metric in metrics:
            if metric.kind != kind:
                continue
            curves[metric.name] = (term.label, {})
            curves[EVALUATION_PREFIX + metric.name] = (f"{term.label}, held out", _HELD_OUT)
            if metric.baseline and kind == "loss":
                label = f"{term.label}, {metric.baseline_label}"
                baselines[EVALUATION_PREFIX + metric.baseline] = (label, _BASELINE)
        unit = "nats" if kind == "loss" else ""
        limits = (0, 1) if kind == "accuracy" else (0, None)
        panels.append(Panel(kind.capitalize(), curves | baselines, unit, limits))
    return (*panels, _RATE, _SPEED)


def finetuning_panels(
    metric: str, splits: Sequence[str], best_step: int, has_accuracy: bool
) -> tuple[Panel, ...]:
    """Returns the panels of a fine-tuning run.

    Args:
      metric: The metric that decides which checkpoint is best.
      splits: The validation splits; empty if none was scored.
      best_step: The step of the best checkpoint.
      has_accuracy: Whether there is a training accuracy; a regression has none.
    """
    scores = Panel(
        f"{metric}; the best: step {best_step:,}",
        {EVALUATION_PREFIX + score_name(splits, x, metric): (x, _HELD_OUT) for x in splits},
        marked_step=best_step,
    )
    accuracy = Panel("Accuracy, training", {"accuracy": ("training", {})}, limits=(0, 1.02))
    return (
        Panel("Loss, training", {"loss": ("training", {})}, limits=(0, None)),
        *([accuracy] if has_accuracy else []),
        *([scores] if splits else []),
        _RATE,
        Panel("Gradient norm", {"grad_norm": ("gradient norm", {})}, limits=(0, None)),
        _SPEED,
    )


def score_name(splits: Sequence[str], split: str, name: str) -> str:
    """Returns the name of a validation split's score in metrics.jsonl.

    Only the scores of the first split have no prefix.
    """
    return name if split == splits[0] else f"{split.removeprefix('validation_')}_{name}"


class RunCurves(NamedTuple):
    """The curves of a run: its name, the lines of metrics.jsonl, and what is drawn of them."""

    name: str
    lines: list[dict[str, Any]]
    panels: Sequence[Panel]


def write_curves(workdir: epath.PathLike, output: epath.PathLike, panels: Sequence[Panel]) -> None:
    """Plots metrics.jsonl over the steps, two or three panels per row."""
    files.write_whole(output, draw_curves([RunCurves("", read_metrics(workdir), panels)], "png"))


def draw_curves(runs: Sequence[RunCurves], format: str) -> bytes:
    """Returns an image of the curves of one or several runs, as "png" or "svg".

    Panels with the same title become one. With several runs, labels begin with the name of the run,
    and baselines are left out.
    """
    # Imported late: matplotlib would delay the first step of a run.
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    titles = list(dict.fromkeys(panel.title for run in runs for panel in run.panels))
    columns = 2 if len(titles) <= 4 else 3
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(5.5 * columns, 3.5 * rows))
    figure.subplots_adjust(left=0.07, right=0.98, bottom=0.08, top=0.95, wspace=0.2, hspace=0.35)
    # pyplot is not used, because its global state and display belong to the user's program.
    FigureCanvasAgg(figure)
    all_axes = list(figure.subplots(rows, columns).flat)
    for axes, title in zip(all_axes, titles, strict=False):
        parts = [(run, panel) for run in runs for panel in run.panels if panel.title == title]
        for run, panel in parts:
            _draw(axes, panel, run.lines, prefix=f"{run.name}: " if len(runs) > 1 else "")
        _finish(axes, parts[0][1])
    for axes in all_axes[len(titles) :]:
        axes.remove()
    image = io.BytesIO()
    # An SVG keeps its text as text, and its bytes do not depend on the time.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bert_jax"}):
        metadata = {"Date": None} if format == "svg" else None
        figure.savefig(image, format=format, dpi=100, metadata=metadata)
    return image.getvalue()


def _draw(axes: Any, panel: Panel, lines: list[dict[str, Any]], prefix: str) -> None:
    for name, (label, style) in panel.curves.items():
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if points and not (prefix and style is _BASELINE):
            axes.plot(*zip(*points, strict=True), label=prefix + label, **style)


def _finish(axes: Any, panel: Panel) -> None:
    if len(axes.lines) > 1:
        axes.legend(fontsize="small")
    if panel.marked_step is not None:
        axes.axvline(panel.marked_step, color="gray", linestyle=":")
    bottom, top = panel.limits
    if top is None and bottom is not None and axes.has_data():
        # matplotlib's own margin is a share of the data's range, which may not begin at `bottom`.
        top = bottom + 1.05 * (axes.dataLim.ymax - bottom)
    axes.set(title=panel.title, xlabel="step", ylabel=panel.unit, ylim=(bottom, top or None))
    axes.grid(alpha=0.3)
