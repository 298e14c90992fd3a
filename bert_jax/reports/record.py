"""Reads what the work directory of a run or a sweep holds about its results and its cost."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.objectives.term import Metric
from bert_jax.objectives.terms import make_terms
from bert_jax.reports.curves import (
    FIRST_STAGE,
    HIGHEST,
    LOWEST,
    Panel,
    finetuning_panels,
    pretraining_panels,
)
from bert_jax.training import workdir
from bert_jax.training.metrics import (
    BASELINE,
    BY_SOURCE,
    EVALUATION_PREFIX,
    OTHER_TEXT,
    read_metrics,
)
from bert_jax.training.stages import resolve_stages, stage_of

# Kinds of fine-tuning scores: plain numbers and percentages. More is better in both.
_KINDS = ("score", "accuracy")
# The most common class of the training rows, or their mean, for each row.
_CONSTANT = "constant guess"
# The prefix of the splits that were scored before the first step.
_EARLIER = "before_"
_OTHER = OTHER_TEXT.removesuffix("_")


class RunRecord(NamedTuple):
    """What a work directory holds about its run.

    Attributes:
      values: The values of `metrics` and their baselines by name, without NaN; before the end of a
        pre-training run, from its last evaluation.
      metrics: The results to show by their labels, the most important first.
      panels: The quantities to plot by their titles.
    """

    directory: epath.Path
    config: ConfigDict
    results: Mapping[str, Any]
    lines: list[dict[str, Any]]
    values: Mapping[str, float]
    metrics: Mapping[str, Metric]
    panels: Mapping[str, Panel]

    def value(self, label: str) -> float:
        return self.values[self.metrics[label].name]

    def text(self, label: str) -> str:
        """Formats a result; a median over seeds has its range too: "75.0% (74.5% to 75.5%)"."""
        metric = self.metrics[label]
        text, ends = metric.text(self.value(label)), (LOWEST + metric.name, HIGHEST + metric.name)
        if LOWEST + metric.name in self.values:
            text += f" ({' to '.join(metric.text(self.values[end]) for end in ends)})"
        return text

    def baseline(self, label: str) -> float | None:
        return self.values.get(self.metrics[label].baseline)


def read_runs(directory: epath.PathLike) -> list[RunRecord]:
    """Reads a work directory, or those of all runs of a sweep or of all tasks of GLUE."""
    path = epath.Path(directory)
    if (path / workdir.GLUE).exists():
        tasks = files.read_json(path / workdir.GLUE)["scores"]
        return [run for task in tasks for run in read_runs(path / task)]
    configs = (
        [] if (path / workdir.CONFIG).exists() else path.glob(f"{workdir.RUNS}/*/{workdir.CONFIG}")
    )
    return [read_run(config.parent) for config in sorted(configs)] or [read_run(directory)]


def read_run(directory: epath.PathLike) -> RunRecord:
    config, path = workdir.load_config(directory), epath.Path(directory)
    lines = read_metrics(path)
    results = files.read_json(path / workdir.RESULTS, optional=True)
    if workdir.is_finetuning(config):
        values, metrics, panels = _of_finetuning(config, results)
    else:
        values, metrics, panels = _of_pretraining(config, results, lines)
    values = {name: value for name, value in values.items() if value == value}
    # ELECTRA's generator has the same metrics as a masked-LM term.
    shown = {metric.label: metric for metric in metrics if metric.name in values}
    titled = {panel.title: panel for panel in panels}
    return RunRecord(path, config, results, lines, values, shown, titled)


def _of_finetuning(
    config: ConfigDict, results: Mapping[str, Any]
) -> tuple[dict[str, float], list[Metric], Sequence[Panel]]:
    """Returns the scores of all splits by name, their metrics, and the panels."""
    splits = {name: scores for name, scores in results.items() if isinstance(scores, dict)}
    baseline = splits.pop(BASELINE, {})
    validation = [split for split in splits if split.startswith("validation")]
    # The score that selects the best checkpoint comes first.
    main, full = results.get("metric") or "", 100.0 if config.task.startswith("squad") else 1.0
    values, metrics = {}, []
    earlier = {split: splits.pop(split) for split in [*splits] if split.startswith(_EARLIER)}
    for split, scores in splits.items():
        # The weights that an embedding run began with; other runs begin without a head.
        before, label = earlier.get(f"{_EARLIER}{split}", {}), "before training"
        if split in validation[:1] and baseline:
            before, label = baseline, _CONSTANT
        first = [name for name in scores if name.startswith(FIRST_STAGE)]
        if first:
            before = {name.removeprefix(FIRST_STAGE): scores[name] for name in first}
            label = "first stage"
        for name in sorted(scores, key=lambda name: name != main):
            is_fraction = not any(word in name for word in ("error", "thresh", "total"))
            metric = Metric(f"{split} {name}", f"{split} {name}", _KINDS[is_fraction])
            if scores[name] is None or name in first:
                continue
            values[metric.name] = scores[name] / (full if is_fraction else 1.0)
            if before.get(name) is not None:
                baseline_name = f"{label} {metric.name}"
                metric = metric._replace(baseline=baseline_name, baseline_label=label)
                values[baseline_name] = before[name]
            metrics.append(metric)
    return values, metrics, finetuning_panels(main, validation, full)


def _of_pretraining(
    config: ConfigDict, results: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[Metric], Sequence[Panel]]:
    """Returns the results by name, or those of the last evaluation; their metrics; and the panels.

    The metrics of the term with the largest weight come first, those with a baseline before others.
    """
    terms = make_terms(config.objective.terms, config.objective)
    texts = [*results.get(BY_SOURCE, {}), *([_OTHER] if config.eval.other_text else [])]
    lengths = [(stage.first_step, stage.max_seq_length) for stage in resolve_stages(config)]
    changes = tuple(new for old, new in itertools.pairwise(lengths) if new[1] != old[1])
    panels = [
        panel if panel.points else panel._replace(row_lengths=changes)
        for panel in pretraining_panels(terms, texts)
    ]
    pairs = zip(config.objective.weights, terms, strict=True)
    terms = [term for _, term in sorted(pairs, key=lambda pair: -pair[0])]
    metrics = [metric for term in terms for metric in term.metrics]
    metrics.sort(key=lambda metric: not metric.baseline)
    values = {
        name.removeprefix(EVALUATION_PREFIX): value
        for line in lines
        for name, value in line.items()
        if name.startswith(EVALUATION_PREFIX) and value is not None
    }
    return values | results, metrics, panels


def best_of(metric: Metric) -> Callable[..., float]:
    """Returns the function that picks the best of several values, `max` or `min`."""
    return max if metric.kind in _KINDS else min


def totals(run: RunRecord) -> tuple[float, int, float]:
    """Adds up the seconds of training, the sequences and the FLOPs over the log lines."""
    lines = [line for line in run.lines if "loss" in line]
    steps = [line["step"] for line in lines]
    # A run that continues another one begins at its step.
    interval = steps[1] - steps[0] if len(steps) > 1 else run.config.log.every_steps
    before, seconds, sequences, flops = max(0, steps[0] - interval) if steps else 0, 0.0, 0, 0.0
    stages = [] if workdir.is_finetuning(run.config) else resolve_stages(run.config)
    for line in lines:
        if rate := line.get("sequences_per_second"):
            of_step = stage_of(stages, line["step"]) if stages else run.config.train
            count = (line["step"] - before) * of_step.batch_size
            before, sequences = line["step"], sequences + count
            seconds += count / rate
            flops += line["flops_per_second"] * count / rate
    return seconds, sequences, flops


def cost(run: RunRecord) -> dict[str, str]:
    """Formats the cost of a run by label; {} if no log line has a speed."""
    seconds, sequences, flops = totals(run)
    if not seconds:
        return {}
    compilation = sum(line.get("compile_seconds", 0.0) for line in run.lines if "loss" in line)
    return {
        "training time": duration(seconds),
        "compilation": duration(compilation),
        "sequences": f"{sequences:,}",
        "sequences/s": f"{float(f'{sequences / seconds:.3g}'):,g}",
        "model FLOPs": with_prefix(flops, "FLOPs"),
        "FLOP/s": with_prefix(flops / seconds, "FLOP/s"),
    }


def duration(seconds: float) -> str:
    """Formats a time: "1.5 h"."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def with_prefix(value: float, unit: str) -> str:
    """Formats a number with three digits and an SI prefix: "1.23 TFLOPs"."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(unit)(float(f"{value:.3g}"))
