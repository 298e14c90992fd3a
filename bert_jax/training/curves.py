"""The run in one picture: WORKDIR/curves.png."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax import files
from bert_jax.training.metrics import read_metrics

_HELD_OUT: dict[str, Any] = {"marker": "o"}


@dataclasses.dataclass(frozen=True)
class Panel:
    """One of a picture's diagrams, over the steps.

    Attributes:
      title: Above it.
      curves: What of metrics.jsonl is drawn: names with their labels and matplotlib's style;
        what has no value is left out.
      unit: Of the values; empty: none.
      limits: Of the values; None: a little beyond where they end.
      marked_step: Gets a line; None: there is none.
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
PRE_TRAINING = (
    Panel(
        "Loss",
        {
            "mlm_loss": ("masked LM", {}),
            "eval_mlm_loss": ("masked LM, held out", _HELD_OUT),
            "nsp_loss": ("next sentence", {}),
            "eval_nsp_loss": ("next sentence, held out", _HELD_OUT),
            "eval_unigram_mlm_loss": ("unigram baseline", {"linestyle": ":", "color": "gray"}),
        },
        "nats",
        (0, None),
    ),
    Panel(
        "Accuracy",
        {
            "mlm_accuracy": ("masked LM", {}),
            "eval_mlm_accuracy": ("masked LM, held out", _HELD_OUT),
            "nsp_accuracy": ("next sentence", {}),
            "eval_nsp_accuracy": ("next sentence, held out", _HELD_OUT),
        },
        limits=(0, 1),
    ),
    _RATE,
    _SPEED,
)


def fine_tuning(
    metric: str, scores: Mapping[str, str], best_step: int, has_accuracy: bool
) -> tuple[Panel, ...]:
    """Of a run of fine-tuning.

    Args:
      metric: The best checkpoint is judged by it.
      scores: Its names in metrics.jsonl, of each validation split, and what these are called.
      best_step: The best checkpoint's.
      has_accuracy: Whether training has one: of a number there is none.
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


def write_curves(
    workdir: epath.PathLike, output: epath.PathLike, panels: Sequence[Panel] = PRE_TRAINING
) -> None:
    """Plots what the panels name of metrics.jsonl over the steps, two panels or three a row."""
    # Not before the run's first step, which would wait for it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = read_metrics(workdir)
    columns = 2 if len(panels) <= 4 else 3
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.5 * columns, 3.5 * rows), layout="constrained")
    # No pyplot: its global state and display belong to the user's own program.
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
        # matplotlib's own margin is a share of a range that did not begin there.
        top = bottom + 1.05 * (axes.dataLim.ymax - bottom)
    axes.set(title=panel.title, xlabel="step", ylabel=panel.unit, ylim=(bottom, top or None))
    if len(panel.curves) > 1 and axes.has_data():
        axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
