"""Plots the metrics of a run in one figure, WORKDIR/curves.png."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax import files
from bert_jax.objectives.term import Term
from bert_jax.training.metrics import read_metrics

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
            curves[f"eval_{metric.name}"] = (f"{term.label}, held out", _HELD_OUT)
            if metric.baseline and kind == "loss":
                label = f"{term.label}, {metric.baseline_label}"
                baselines[f"eval_{metric.baseline}"] = (label, _BASELINE)
        unit = "nats" if kind == "loss" else ""
        limits = (0, 1) if kind == "accuracy" else (0, None)
        panels.append(Panel(kind.capitalize(), curves | baselines, unit, limits))
    return (*panels, _RATE, _SPEED)


def finetuning_panels(
    metric: str, scores: Mapping[str, str], best_step: int, has_accuracy: bool
) -> tuple[Panel, ...]:
    """Returns the panels of a fine-tuning run.

    Args:
      metric: The metric that decides which checkpoint is best.
      scores: The name of each validation split, by the name of its score in metrics.jsonl.
      best_step: The step of the best checkpoint.
      has_accuracy: Whether there is a training accuracy; a regression has none.
    """
    accuracy = Panel("Accuracy, training", {"accuracy": ("training", {})}, limits=(0, 1.02))
    return (
        Panel("Loss, training", {"loss": ("training", {})}, limits=(0, None)),
        *([accuracy] if has_accuracy else []),
        Panel(
            f"{metric}; the best: step {best_step:,}",
            {name: (label, _HELD_OUT) for name, label in scores.items()},
            marked_step=best_step,
        ),
        _RATE,
        Panel("Gradient norm", {"grad_norm": ("gradient norm", {})}, limits=(0, None)),
        _SPEED,
    )


def write_curves(workdir: epath.PathLike, output: epath.PathLike, panels: Sequence[Panel]) -> None:
    """Plots metrics.jsonl over the steps, two or three panels per row."""
    # Imported late: matplotlib would delay the first step of a run.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = read_metrics(workdir)
    columns = 2 if len(panels) <= 4 else 3
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.5 * columns, 3.5 * rows))
    figure.subplots_adjust(left=0.07, right=0.98, bottom=0.08, top=0.95, wspace=0.2, hspace=0.35)
    # pyplot is not used, because its global state and display belong to the user's program.
    FigureCanvasAgg(figure)
    all_axes = list(figure.subplots(rows, columns).flat)
    for axes, panel in zip(all_axes, panels, strict=False):
        _draw(axes, panel, lines)
    for axes in all_axes[len(panels) :]:
        axes.remove()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100)
    files.write_whole(output, image.getvalue())


def _draw(axes: Any, panel: Panel, lines: list[dict[str, Any]]) -> None:
    for name, (label, style) in panel.curves.items():
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **style)
    if panel.marked_step is not None:
        axes.axvline(panel.marked_step, color="gray", linestyle=":")
    bottom, top = panel.limits
    if top is None and bottom is not None and axes.has_data():
        # matplotlib's own margin is a share of the data's range, which may not begin at `bottom`.
        top = bottom + 1.05 * (axes.dataLim.ymax - bottom)
    axes.set(title=panel.title, xlabel="step", ylabel=panel.unit, ylim=(bottom, top or None))
    if len(panel.curves) > 1 and axes.has_data():
        axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
