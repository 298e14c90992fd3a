"""The panels of metrics: curves.png and the figures of the report."""

import re
import struct

import pytest
from matplotlib.figure import Figure

from bert_jax.config import default_config
from bert_jax.pretraining.build import make_objective
from bert_jax.reports import curves
from bert_jax.reports.curves import (
    Panel,
    finetuning_panels,
    has_points,
    panel_svg,
    pretraining_panels,
    write_curves,
)


def drawn_lines(panel, lines):
    axes = Figure().subplots()
    curves._draw(axes, panel, [lines])
    return axes.lines


def test_curves_of_pretraining(tmp_path):
    lines = []
    for step in range(10, 210, 10):
        line = {"mlm_loss": 9 * 0.99**step, "nsp_loss": 0.69, "mlm_accuracy": step / 400}
        line |= {"nsp_accuracy": 0.6, "learning_rate": 1e-3, "sequences_per_second": None}
        lines.append({"step": step} | line | ({"sequences_per_second": 50.0} if step > 10 else {}))
        if step % 50 == 0:
            evaluation = {"eval_mlm_loss": 9 * 0.99**step + 0.3, "eval_unigram_mlm_loss": 6.2}
            lines.append({"step": step} | evaluation)
    panels = pretraining_panels(make_objective(default_config()).terms)
    write_curves(lines, tmp_path / "curves.png", panels)
    content = (tmp_path / "curves.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    # Six panels; there is no gradient norm.
    assert struct.unpack(">II", content[16:24]) == (1120, 925)
    write_curves([], tmp_path / "empty.png", panels)
    assert len(content) > 1.5 * (tmp_path / "empty.png").stat().st_size


def test_curves_of_fine_tuning():
    lines = [{"step": step, "loss": 50.0 + step, "accuracy": step / 100} for step in (10, 20)]
    lines += [{"step": 20, "eval_f1": 80.0, "eval_mismatched_f1": 70.0, "eval_accuracy": 0.5}]
    splits = ("validation_matched", "validation_mismatched")
    panels = {panel.title: panel for panel in finetuning_panels("f1", splits, 100.0)}
    drawn = {
        title: [line.get_label() for line in drawn_lines(panel, lines)]
        for title, panel in panels.items()
        if has_points(panel, lines)
    }
    assert drawn == {
        "validation_matched f1": ["held-out"],
        "validation_mismatched f1": ["held-out"],
        "accuracy": ["training", "held-out"],
        "loss": ["training"],
    }
    (loss,) = drawn_lines(panels["loss"], lines)
    assert list(loss.get_xdata()) == [10, 20] and list(loss.get_ydata()) == [60, 70]


def test_an_axis_fits_its_quantity():
    lines = [{"step": 50 * i, "nsp_loss": 0.69, "mlm_loss": 8.0 - i / 10} for i in range(1, 11)]
    lines += [{"step": 500, "eval_mlm_loss": 7.5, "eval_unigram_mlm_loss": 6.5}]
    lines += [{"step": 100, "mlm_accuracy": 0.05}, {"step": 200, "mlm_accuracy": 0.06}]
    panels = {
        panel.name: panel for panel in pretraining_panels(make_objective(default_config()).terms)
    }
    axes = drawn_lines(panels["mlm_loss"], lines)[0].axes
    assert 6.3 < axes.get_ylim()[0] < 6.5 and 7.9 < axes.get_ylim()[1] < 8.0
    baseline = axes.lines[-1]
    # It is drawn from the first step.
    assert list(baseline.get_xdata()) == [50, 500] and set(baseline.get_ydata()) == {6.5}
    axes = drawn_lines(panels["mlm_accuracy"], lines)[0].axes
    assert axes.get_ylim()[1] < 0.07 and axes.yaxis.get_major_formatter()(0.05).startswith("5")


def test_a_panel_of_a_page_maps_its_curves_to_values():
    lines = [{"step": 0, "loss": 2.0}, {"step": 100, "loss": 4.0}]
    svg = panel_svg(Panel("loss", "loss"), [[], lines])
    assert svg == panel_svg(Panel("loss", "loss"), [[], lines])
    left, right, bottom, top = map(float, re.search('data-frame="(.*?)"', svg)[1].split())
    first, last, least, most = map(float, re.search('data-limits="(.*?)"', svg)[1].split())
    path = re.search(r'<g class="run training" data-run="1">\s*<path d="(.*?)"', svg, re.DOTALL)[1]
    x0, y0, x1, y1 = map(float, re.findall(r"[\d.]+", path))
    for x, y, step, value in ((x0, y0, 0, 2.0), (x1, y1, 100, 4.0)):
        assert first + (x - left) / (right - left) * (last - first) == pytest.approx(step, abs=0.1)
        read = least + (y - bottom) / (top - bottom) * (most - least)
        assert read == pytest.approx(value, abs=0.01)


def test_a_long_curve_is_thinned_and_keeps_its_end():
    lines = [{"step": step, "loss": step / 2} for step in range(1, 4321)]
    (loss,) = drawn_lines(Panel("loss", "loss"), lines)
    steps = loss.get_xdata()
    assert list(steps) == list(range(5, 4321, 5)) and list(loss.get_ydata()) == [
        x / 2 for x in steps
    ]


def test_a_line_says_where_rows_of_another_length_begin():
    """A run has not got to step 30, and the axes need not have room for it."""
    panel = Panel("loss", "loss", row_lengths=((12, 64), (18, 1024), (30, 2048)))
    axes = drawn_lines(panel, [{"step": 10, "loss": 2.0}, {"step": 20, "loss": 3.0}])[0].axes
    steps = [{*line.get_xdata()} for line in axes.lines]
    assert steps == [{10, 20}, {12}, {18}] and axes.get_xlim()[1] < 21
    assert [text.get_text() for text in axes.texts] == [
        "rows of 64 tokens from here",
        "rows of 1,024 tokens from here",
    ]
