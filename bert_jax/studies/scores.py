"""Gives pre-trainings the scores of the fine-tunings that begin with their checkpoints."""

from collections import defaultdict
from collections.abc import Sequence

from etils import epath

from bert_jax.base import files
from bert_jax.objectives.term import Metric
from bert_jax.reports.curves import HIGHEST, LOWEST, Panel
from bert_jax.reports.record import RunRecord
from bert_jax.training import workdir
from bert_jax.training.metrics import EVALUATION_PREFIX

_RANDOM = "random weights"


def with_scores(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Returns the runs of a study, in which a pre-training has a result for each task."""
    scored = [run for run in runs if not workdir.is_finetuning(run.config)]
    tuned = [run for run in runs if workdir.is_finetuning(run.config)]
    by_label = defaultdict(list)
    for run in tuned:
        if run.metrics:
            label = f"{run.config.task} {next(iter(run.metrics))}, median (range) over seeds"
            by_label[label].append(run)
    for label, of_task in by_label.items():
        scored = [_with_score(run, label, of_task) for run in scored]
    return scored + tuned


def _with_score(run: RunRecord, label: str, tuned: Sequence[RunRecord]) -> RunRecord:
    """Gives a pre-training a result: the score of the fine-tuning that begins with its weights.

    If fine-tunings begin with several steps, the result is that of the last step, and a panel plots
    all. If several begin with the same step, the best score is taken. The baseline is the score of
    the first that begins with random weights.
    """
    points: dict[int, tuple[float, ...]] = {}
    baseline = None
    for other in tuned:
        begin, score = epath.Path(other.config.init_from), _score(other)
        if other.config.from_scratch:
            baseline = score[0] if baseline is None else baseline
        elif begin == run.directory or begin.parent == run.directory / workdir.CHECKPOINTS:
            step = run.results["step"] if begin == run.directory else int(begin.name)
            points[step] = max(score, points.get(step, score))
    if not points:
        return run
    metric = Metric(label, label, next(iter(tuned[0].metrics.values())).kind)
    names = [label, LOWEST + label, HIGHEST + label]
    if baseline is not None:
        metric = metric._replace(baseline=f"{_RANDOM}, {label}", baseline_label=_RANDOM)
        names.append(metric.baseline)
    by_step = {
        step: dict(zip(names, (*points[step], baseline), strict=False)) for step in sorted(points)
    }
    lines = [
        {"step": step} | {EVALUATION_PREFIX + name: value for name, value in values.items()}
        for step, values in by_step.items()
    ]
    panel = Panel(label, label, metric.baseline, float(metric.kind == "accuracy"))
    return run._replace(
        lines=run.lines + lines,
        values={**run.values, **by_step[max(by_step)]},
        metrics={**run.metrics, label: metric},
        panels={**run.panels, **({label: panel} if len(points) > 1 else {})},
    )


def _score(run: RunRecord) -> tuple[float, float, float]:
    """Returns the median, lowest and highest score over seeds, at the best setting of a sweep."""
    main, sweep = next(iter(run.metrics)), run.directory.parent.parent / workdir.SWEEP
    if not sweep.exists():
        return (run.value(main),) * 3
    best, full = files.read_json(sweep)["settings"][0], run.panels[main].full or 1.0
    return best["median"] / full, best["lowest"] / full, best["highest"] / full
