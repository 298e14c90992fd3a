"""The run in one picture: WORKDIR/curves.png."""

import io
from typing import Any

from etils import epath
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bert_jax import storage
from bert_jax.training.metrics import read_metrics


def write_curves(workdir: epath.PathLike, output: epath.PathLike) -> None:
    """Plots loss, accuracy, learning rate and speed of metrics.jsonl over the steps."""
    lines = read_metrics(workdir)
    figure = Figure(figsize=(11, 7), layout="constrained")
    # No pyplot: its global state and display belong to the user's own program.
    FigureCanvasAgg(figure)
    loss, accuracy, rate, speed = figure.subplots(2, 2).flat

    for name, label in (("mlm_loss", "masked LM"), ("nsp_loss", "next sentence")):
        _plot(loss, lines, name, label)
        _plot(loss, lines, f"eval_{name}", f"{label}, held out", marker="o")
    _plot(loss, lines, "eval_unigram_mlm_loss", "unigram baseline", linestyle=":", color="gray")
    loss.set(title="Loss", ylabel="nats", ylim=(0, None))

    for name, label in (("mlm_accuracy", "masked LM"), ("nsp_accuracy", "next sentence")):
        _plot(accuracy, lines, name, label)
        _plot(accuracy, lines, f"eval_{name}", f"{label}, held out", marker="o")
    accuracy.set(title="Accuracy", ylim=(0, 1))

    _plot(rate, lines, "learning_rate", "learning rate")
    rate.set(title="Learning rate", xlabel="step", ylim=(0, None))
    _plot(speed, lines, "sequences_per_second", "sequences/s")
    speed.set(title="Speed", xlabel="step", ylabel="sequences/s", ylim=(0, None))

    for axes in (loss, accuracy):
        if axes.has_data():
            axes.legend(fontsize="small")
    for axes in (loss, accuracy, rate, speed):
        axes.grid(alpha=0.3)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100)
    storage.write_whole(output, image.getvalue())


def _plot(axes: Any, lines: list[dict[str, Any]], name: str, label: str, **style: Any) -> None:
    points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)
