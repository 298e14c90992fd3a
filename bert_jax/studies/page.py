"""The report page of a study: its table, figures, and what they can show."""

from collections.abc import Mapping
from html import escape
from typing import Any

from etils import epath

from bert_jax.reports.curves import COLOR, MARKERS, new_figure, svg_of
from bert_jax.reports.html import colored_name, document, section, table
from bert_jax.reports.page import differences
from bert_jax.reports.record import read_run, with_prefix
from bert_jax.studies import results as results_lib
from bert_jax.studies.plan import Settings
from bert_jax.studies.results import Quantity
from bert_jax.training import workdir

# What the figures show the results against: the key in results.json and the label of the axis.
_AXES = (("parameters", "parameters"), ("flops", "FLOPs"), ("seconds", "training time"))
_FIGURES_NOTE = """<p class=note>Each symbol is the median of a model over its seeds; the line
through it is their range. Dotted: random weights. A quantity that is equal for all models has no
figure.</p>"""


def page(
    results: Mapping[str, Any],
    settings: Settings,
    directory: epath.Path,
    runs: Mapping[str, epath.Path],
) -> str:
    """Writes the HTML of a study's page.

    Args:
      results: The contents of results.json.
      settings: The flags of the study.
      directory: The directory of the page, to which its links are relative.
      runs: The work directory of a pre-training of each model, by the model's name.
    """
    names = [row["name"] for row in results["models"]]
    headers, rows = results_lib.table_rows(results)
    for number in range(len(names)):
        rows[number][0] = colored_name(names, number)
    figures = [
        _figure(quantity, key, label, results)
        for quantity in results_lib.quantities(results)
        for key, label in _AXES
        if _differs(quantity, key, results)
    ]
    sentences = "".join(f"<li>{escape(text)}</li>" for text in results_lib.conclusions(results))
    links = "".join(
        f'<li><a href="{path.relative_to(directory) / workdir.REPORT}">{escape(name)}</a></li>'
        for name, path in runs.items()
    )
    title = f"{len(names)} models compared"
    parts = [
        f"<h1>{title}</h1>",
        f"<p class=lead>{escape(_lead(settings, results))}</p>",
        table(headers, rows),
        section("What the differences show", f"<ul>{sentences}</ul>"),
        figures
        and section(
            "Loss and scores against size and cost",
            _FIGURES_NOTE,
            f"<div class=plots>{''.join(figures)}</div>",
        ),
        section(
            "Differences of the configs",
            # The models share the store of the first.
            differences(names, [read_run(path) for path in runs.values()], ["data.store"]),
        ),
        section("Pages of the pre-trainings", f"<ul>{links}</ul>"),
    ]
    return document(title, "\n".join(filter(None, parts)), len(names))


def _lead(settings: Settings, results: Mapping[str, Any]) -> str:
    budget = results["models"][0][settings.equal]
    is_flops = settings.equal == "flops"
    equal = with_prefix(budget, "FLOPs") if is_flops else f"{budget:,} {settings.equal}"
    seeds = settings.pretraining_seeds
    text = f"Every model was pre-trained with {equal}"
    text += f", with {seeds} seeds" if seeds > 1 else ", once"
    if results["tasks"]:
        plural = "s" if settings.seeds > 1 else ""
        text += f", and fine-tuned with {settings.seeds} seed{plural}; scores are of the last step"
    return f"{text}."


def _differs(quantity: Quantity, key: str, results: Mapping[str, Any]) -> bool:
    """Returns whether the models of a quantity differ in the value of an axis by over 5 %."""
    named = [values.name for values in quantity.models]
    found = [row[key] for row in results["models"] if row["name"] in named]
    return max(found) > 1.05 * min(found)


def _figure(quantity: Quantity, key: str, label: str, results: Mapping[str, Any]) -> str:
    """Draws a quantity of the models against their size or cost."""
    from matplotlib.ticker import EngFormatter

    figure = new_figure()
    axes = figure.subplots()
    values = {v.name: v for v in quantity.models}
    for number, row in enumerate(results["models"]):
        if not (of_model := values.get(row["name"])):
            continue
        below, above = of_model.middle - of_model.lowest, of_model.highest - of_model.middle
        axes.errorbar(
            *(row[key], of_model.middle, [[below], [above]]),
            color=COLOR.format(number),
            marker=MARKERS[number % len(MARKERS)],
            markersize=7,
            linestyle="none",
        )
    if quantity.random:
        axes.axhline(quantity.random.middle, color="#000000", linestyle=":")
    axes.set_xscale("log")
    unit = "s" if key == "seconds" else ""
    axes.xaxis.set_major_formatter(EngFormatter(unit, sep=""))
    axes.xaxis.set_minor_formatter(EngFormatter(unit, sep=""))
    axes.tick_params(axis="x", which="minor", labelsize="small", rotation=30)
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)
    caption = f"<figcaption>{escape(quantity.title)}</figcaption>"
    return f"<figure>{caption}{svg_of(figure, axes)}</figure>"
