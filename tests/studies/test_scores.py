"""A pre-training of a study has the scores of the fine-tunings that begin with its checkpoints."""

import json
import re

import pytest

from bert_jax import config as config_lib
from bert_jax.config import finetune_config
from bert_jax.config.finetuning import filled_in
from bert_jax.reports.page import page
from bert_jax.reports.record import read_run, read_runs
from bert_jax.studies import run
from bert_jax.studies.scores import with_scores
from tests import cheap
from tests.reports.test_page import RESULTS, Tables, lead, write_run
from tests.small_run import small_run

LABEL = "mrpc validation f1, median (range) over seeds"
KINDS = ("held-out", "lowest", "highest", "baseline")


def write_sweep(directory, init_from, median, lowest, highest, **values):
    """Writes a sweep over two seeds, and the settings that its best rate and another one have."""
    (directory / "runs").mkdir(parents=True)
    config = finetune_config("mrpc")
    config.update({"init_from": str(init_from), **values})
    labels = ("different", "equivalent")
    config = filled_in(config, small_run("texts").model, "sequence_classification", labels)
    for seed, score in enumerate((lowest, highest)):
        results = {"metric": "f1", "score": score, "validation": {"accuracy": 0.125, "f1": score}}
        path = write_run(directory / "runs" / f"seed_{seed}", results)
        (path / "config.json").write_text(json.dumps(config_lib.to_dict(config)))
    best = {"learning_rate": 1e-3, "median": median, "lowest": lowest, "highest": highest}
    settings = [best, {"learning_rate": 1.0, "median": 0.0, "lowest": 0.0, "highest": 0.0}]
    (directory / "sweep.json").write_text(json.dumps({"settings": settings}))


@pytest.fixture
def runs(tmp_path):
    """Two pre-trainings; of the first, two checkpoints and the end are fine-tuned."""
    write_run(tmp_path / "a", RESULTS)
    write_run(tmp_path / "b", RESULTS | {"mlm_loss": 2.0})
    write_sweep(tmp_path / "mrpc_a", tmp_path / "a", 0.75, 0.625, 0.875)
    write_sweep(tmp_path / "mrpc_a_4", tmp_path / "a" / "checkpoints" / "4", 0.5, 0.5, 0.5)
    write_sweep(tmp_path / "mrpc_a_2", tmp_path / "a" / "checkpoints" / "2", 0.375, 0.25, 0.5)
    write_sweep(tmp_path / "mrpc_b", tmp_path / "b", 0.25, 0.25, 0.25)
    # Of two fine-tunings of one checkpoint, the best counts.
    write_sweep(tmp_path / "mrpc_b_again", tmp_path / "b" / "checkpoints" / "6", 0.5, 0.375, 0.625)
    write_sweep(tmp_path / "mrpc_other", tmp_path / "elsewhere", 1.0, 1.0, 1.0)
    write_sweep(tmp_path / "mrpc_random", tmp_path / "a", 0.125, 0.0, 0.25, from_scratch=True)
    return [run for path in sorted(tmp_path.iterdir()) for run in read_runs(path)]


def test_scores_stand_beside_the_losses(runs):
    scored = with_scores(runs)
    assert [run.directory for run in scored] == [run.directory for run in runs]
    a, b = (run for run in scored if "task" not in run.config)
    assert (a.text(LABEL), b.text(LABEL)) == ("75.0% (62.5% to 87.5%)", "50.0% (37.5% to 62.5%)")
    columns = {c.header: list(c.cells) for c in run.table([a, b], "pre-training").columns}
    # The loss still decides the order.
    assert columns["run"] == ["b", "a"]
    assert columns[LABEL][1] == "75.0% (62.5% to 87.5%)\nbaseline 12.5%"
    assert [*columns][:4] == ["run", "masked-LM loss (nats)", "masked-LM accuracy", LABEL]


def test_scores_of_several_steps_are_plotted(runs):
    a, b = (run for run in with_scores(runs) if "task" not in run.config)
    keys = [f"eval_{end}{LABEL}" for end in ("", "lowest ", "highest ")]
    lines = [(line["step"], *(line[key] for key in keys)) for line in a.lines if keys[0] in line]
    assert lines == [(2, 0.375, 0.25, 0.5), (4, 0.5, 0.5, 0.5), (6, 0.75, 0.625, 0.875)]
    assert LABEL in a.panels and LABEL not in b.panels
    with cheap.figures(drawn=True):
        text = page([a, b])
    figure = text[text.index(f"<figcaption>{LABEL}") :].partition("</figure>")[0]
    found = {kind: re.findall(rf'class="run {kind}" data-run="(\d)"', figure) for kind in KINDS}
    # The other model, which comes first, has no curve of one point.
    assert found == dict.fromkeys(KINDS, ["1"])


def test_models_without_a_common_loss_are_ranked_by_their_scores(runs, tmp_path):
    causal = {"objective__terms": ("next_token",), "objective__weights": (1.0,)}
    causal |= {"model__causal": True, "data__corruption": "none"}
    write_run(tmp_path / "c", {"lm_loss": 1.0, "unigram_lm_loss": 2.0}, **causal)
    write_sweep(tmp_path / "mrpc_c", tmp_path / "c", 1.0, 1.0, 1.0)
    both = [run for run in runs if run.directory.parent != tmp_path or run.directory.name == "a"]
    others = [read_run(tmp_path / "c"), *read_runs(tmp_path / "mrpc_c")]
    models = [run for run in with_scores([*both, *others]) if "task" not in run.config]
    text = f"Of 2 runs, c has the best {LABEL}: 100.0% (100.0% to 100.0%), against 75.0%"
    assert lead(models).startswith(text)
    assert Tables(page(models)).rows[1][0] == "●\xa0c"


def test_scores_on_several_tasks_of_glue(tmp_path):
    """A fine-tuning on all tasks has a directory for each."""
    for model, median in (("a", 0.75), ("b", 0.5)):
        write_run(tmp_path / model, RESULTS)
        folder = tmp_path / f"glue_{model}"
        write_sweep(folder / "mrpc", tmp_path / model, median, 0.25, 1.0)
        (folder / "glue.json").write_text('{"scores": {"mrpc": {}}}')
    paths = [tmp_path / name for name in ("a", "glue_a", "b", "glue_b")]
    models = with_scores([run for path in paths for run in read_runs(path)])
    assert [run.value(LABEL) for run in models[:2]] == [0.75, 0.5]
    columns = {c.header: list(c.cells) for c in run.table(models[2:], "mrpc").columns}
    # Another setting of each sweep has 0.
    assert columns["sweep"] == [str(tmp_path / f"glue_{x}" / "mrpc") for x in "aabb"]
    assert columns["median"] == ["75.0%", "0.0%", "50.0%", "0.0%"]
