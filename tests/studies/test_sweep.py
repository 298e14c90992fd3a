"""Sweeps over a grid, which resume after a kill, and the table of GLUE."""

import json
import random
import signal
import sys

import pytest

from bert_jax.base.errors import UserError
from bert_jax.config import finetune_config
from bert_jax.studies.sweep import average, best_run, finetune_all, summarized, sweep, task_config
from bert_jax.training import start
from tests import runs
from tests.finetuning import small
from tests.runs import start as start_process
from tests.runs import wait_for


def sweep_config(tmp_path, **overrides):
    """Returns the config of a sweep of one run of three steps."""
    small.write_bert(tmp_path / "hf")
    small.write_rows(tmp_path / "data", train=24)
    grid = {"sweep.learning_rates": (1e-3,), "sweep.batch_sizes": (8,), "sweep.seeds": (0,)}
    values = grid | {"train.num_epochs": 1.0} | overrides
    return small.config(tmp_path / "hf", tmp_path / "data", **values)


def run_of(rate, size, seed, score, epochs=3.0):
    return {
        "train.num_epochs": epochs,
        "name": f"{rate} {size} {seed}",
        "schedule.peak_learning_rate": rate,
        "train.batch_size": size,
        "seed": seed,
        "score": score,
    }


def test_a_setting_is_summarized_over_its_seeds():
    scores = {(1e-3, 16): (0.5, 0.9, 0.6), (1e-4, 16): (0.7, 0.8, 0.7)}
    runs_of_it = [
        run_of(*setting, seed, score)
        for setting, values in scores.items()
        for seed, score in enumerate(values)
    ]
    best, other = summarized(runs_of_it)
    assert best["learning_rate"] == 1e-4 and best["median"] == 0.7 and best["seeds"] == 3
    assert (other["median"], other["lowest"], other["highest"]) == (0.6, 0.5, 0.9)
    assert other["standard_deviation"] == pytest.approx(0.2081666)
    assert best_run(runs_of_it)["name"] == "0.001 16 1"
    equal = [run_of(rate, 16, 0, 0.5) for rate in (2e-5, 1e-5)]
    assert best_run(equal)["name"] == "1e-05 16 0", "the report sorts equal runs by name"
    assert summarized(runs_of_it[:1])[0]["standard_deviation"] == 0


def test_a_run_without_a_score_is_reported(tmp_path, monkeypatch):
    scores = iter((None, 0.5))
    module = "bert_jax.studies.sweep"
    monkeypatch.setattr(
        f"{module}.finetune", lambda *_: {"metric": "spearman", "score": next(scores)}
    )
    monkeypatch.setattr(f"{module}.write_pages", lambda directory: None)
    (tmp_path / "sweep").mkdir()
    summary = sweep(sweep_config(tmp_path, **{"sweep.seeds": (0, 1)}), tmp_path / "sweep")
    assert [run["score"] for run in summary["runs"]] == [0.5]
    assert [run["error"] for run in summary["diverged"]] == ["its spearman is undefined"]
    assert average({"cola": {"validation": 60.0}, "stsb": {"validation": None}}) is None


def test_numbers_of_epochs_are_an_axis(tmp_path, monkeypatch):
    configs = {}

    def finetune(config, directory, setup):
        configs[directory.name] = config
        return {"metric": "accuracy", "score": config.train.num_epochs}

    monkeypatch.setattr("bert_jax.studies.sweep.finetune", finetune)
    monkeypatch.setattr("bert_jax.studies.sweep.write_pages", lambda directory: None)
    (tmp_path / "sweep").mkdir()
    config = sweep_config(tmp_path, **{"sweep.epochs": (2, 0.5), "sweep.seeds": (0, 1)})
    summary = sweep(config, tmp_path / "sweep")
    assert [(x["epochs"], x["seeds"], x["median"]) for x in summary["settings"]] == [
        (2.0, 2, 2.0),
        (0.5, 2, 0.5),
    ]
    name = "rate_0.001_batch_8_epochs_0.5_seed_1"
    assert configs[name].train.num_epochs == 0.5 and len(configs) == 4
    # By default, runs have the names and the configs of earlier sweeps.
    config.sweep.epochs, config.sweep.seeds = (0.0,), (0,)
    summary = sweep(config, tmp_path / "sweep")
    assert summary["best_run"] == "rate_0.001_batch_8_seed_0"
    assert {run.sweep.epochs for run in configs.values()} == {(0.0,)}
    assert [x["epochs"] for x in summary["settings"]] == [1.0]


def test_diverged_settings_come_last():
    settings = summarized(
        [run_of(1e-2, 16, 0, 0.9), run_of(1e-3, 16, 0, 0.5), run_of(1e-3, 16, 1, 0.6)],
        [run_of(1e-2, 16, 1, None)],
    )
    assert [setting["learning_rate"] for setting in settings] == [1e-3, 1e-2]
    assert [(setting["seeds"], setting["diverged"]) for setting in settings] == [(2, 0), (1, 1)]


@pytest.mark.parametrize(
    "overrides,message",
    [
        ({"sweep.batch_sizes": (8, 1000)}, "one batch of config.train.batch_size=1000"),
        (
            {"sweep.batch_sizes": (8, 9), "train.gradient_accumulation_steps": 2},
            "config.train.batch_size is 9",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_before_the_first_run(tmp_path, overrides, message):
    config = sweep_config(tmp_path, **overrides)
    with pytest.raises(UserError, match=message):
        sweep(config, tmp_path / "sweep")
    assert not (tmp_path / "sweep" / "runs").exists()


@pytest.mark.slow
def test_a_killed_sweep_continues(tmp_path):
    bert, data, directory = tmp_path / "hf", tmp_path / "data", tmp_path / "sweep"
    small.write_bert(bert)
    small.write_rows(data, train=64)
    command = small.command(
        directory,
        bert,
        data,
        "--sweep",
        train__num_epochs=1.0,
        sweep__learning_rates="1e-3,5e-3",
        sweep__batch_sizes="8",
        sweep__seeds="0",
    )
    first = directory / "runs" / "rate_0.001_batch_8_seed_0" / "results.json"
    second = directory / "runs" / "rate_0.005_batch_8_seed_0"
    process = start_process(command)
    wait_for(lambda: first.exists() and second.exists(), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert first.exists() and not (directory / "sweep.json").exists()
    before = first.read_bytes()
    output = runs.succeed(command)
    assert first.read_bytes() == before, "a finished run is not repeated"
    assert "This run is finished: step 8 is done." in output
    assert "median" in output and "best run" in output
    assert output.count("what next") == 1, "only the weights of the best run are kept"
    summary = json.loads((directory / "sweep.json").read_text())
    assert [run["seed"] for run in summary["runs"]] == [0, 0]
    assert len(summary["settings"]) == 2 and summary["metric"] == "accuracy"
    kept = [path.parent.name for path in directory.glob("runs/*/best")]
    assert kept == [summary["best_run"]], "only the best run's weights are kept"
    assert not list(directory.glob("runs/*/checkpoints"))
    # A sweep is not accepted as a run, nor a run as a sweep.
    config = finetune_config("table")
    with pytest.raises(UserError, match="sweep holds a sweep .*, not a run; choose another"):
        start.check(directory, config)
    with pytest.raises(UserError, match="holds a run, not a sweep; choose another --workdir"):
        start.check_no_run(directory / "runs" / summary["best_run"], "a sweep")


class TestAllOfGlue:
    def test_the_average_is_the_papers(self):
        """Devlin et al. 2019, table 1, BERT-base: 79.6 over nine columns."""
        scores = {
            "mnli": {"validation_matched": 84.6, "validation_mismatched": 83.4},
            **{
                task: {"validation": score}
                for task, score in zip(
                    "qqp qnli sst2 cola stsb mrpc rte wnli".split(),
                    (71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 0.0),
                    strict=True,
                )
            },
        }
        assert average(scores) == pytest.approx(79.6, abs=0.01)

    def test_task_config_has_the_shared_values_and_the_tasks_folder(self):
        config = finetune_config("all")
        config.data.input, config.train.num_epochs = "glue_data", 2.0
        own = task_config(config, "stsb")
        assert (own.task, own.data.input, own.train.num_epochs) == ("stsb", "glue_data/STS-B", 2.0)
        assert task_config(config, "qqp").data.bad_rows == "skip"

    def test_a_missing_task_is_refused_before_any_work(self, tmp_path):
        config = finetune_config("all")
        (tmp_path / "glue" / "CoLA").mkdir(parents=True)
        for name in ("train", "dev"):
            (tmp_path / "glue" / "CoLA" / f"{name}.tsv").touch()
        config.data.input, config.init_from = str(tmp_path / "glue"), str(tmp_path)
        with pytest.raises(UserError, match="SST-2, but there is no such folder"):
            finetune_all(config, tmp_path / "out", False)
        for name in ("SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI"):
            (tmp_path / "glue" / name).mkdir()
        (tmp_path / "glue" / "SST-2" / "dev.tsv").touch()
        config.data.input = str(tmp_path / "glue")
        with pytest.raises(UserError, match=r"SST-2, which has no train split \(train.tsv, "):
            finetune_all(config, tmp_path / "out", False)
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_sweep_may_be_widened(tmp_path):
    config = sweep_config(tmp_path)
    first = sweep(config, tmp_path / "sweep")
    written = tmp_path / "sweep" / "runs" / first["best_run"] / "results.json"
    before = written.stat().st_mtime_ns
    config.sweep.learning_rates = (2e-3, 1e-3)
    wider = sweep(config, tmp_path / "sweep")
    assert [run["name"] for run in wider["runs"]] == [
        "rate_0.002_batch_8_seed_0",
        "rate_0.001_batch_8_seed_0",
    ]
    assert wider["runs"][1] == first["runs"][0] and written.stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_run_that_diverges_does_not_end_the_others(tmp_path, capsys):
    config = sweep_config(tmp_path)
    config.sweep.learning_rates = (1e30, 1e-3)
    summary = sweep(config, tmp_path / "sweep")
    message = "warning: rate_1e+30_batch_8_seed_0: the loss, gradient or update of"
    assert message in capsys.readouterr().out
    assert [run["name"] for run in summary["diverged"]] == ["rate_1e+30_batch_8_seed_0"]
    assert "not finite" in summary["diverged"][0]["error"]
    assert [run["name"] for run in summary["runs"]] == ["rate_0.001_batch_8_seed_0"]
    # All runs diverge.
    config.sweep.learning_rates = (1e30,)
    with pytest.raises(UserError, match="none of the 1 runs finished with a finite loss"):
        sweep(config, tmp_path / "other")
    assert not (tmp_path / "other" / "sweep.json").exists()
    config.sweep.learning_rates = (1e-3,)
    again = sweep(config, tmp_path / "sweep")
    assert again["diverged"] == [] and again["runs"] == summary["runs"]


@pytest.mark.parametrize("broken", ["without the file", "with a bad row"])
def test_test_split_is_checked_before_the_first_run(tmp_path, broken):
    config = sweep_config(tmp_path)
    config.eval.predict = "test"
    path = tmp_path / "data" / "test.tsv"
    if broken == "without the file":
        path.unlink()
        message = "config.eval.predict is test, but config.data.input, .*, has no test split"
    else:
        path.write_text("text\tlabel\nfine\tyes\none\ttoo\tmany\n")
        message = "test.tsv:3: 3 columns instead of 2"
    with pytest.raises(UserError, match=message):
        sweep(config, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


# The columns of train.tsv and dev.tsv; test.tsv has an index and no label.
COLUMNS = {
    "SST-2": "sentence label",
    "MRPC": "Quality #1_ID #2_ID #1_String #2_String",
    "STS-B": "index sentence1 sentence2 score",
    "QQP": "id question1 question2 is_duplicate",
    "MNLI": "index sentence1 sentence2 gold_label",
    "QNLI": "index question sentence label",
    "RTE": "index sentence1 sentence2 label",
    "WNLI": "index sentence1 sentence2 label",
}
LABELS = ("Quality", "score", "is_duplicate", "gold_label", "label")
VALUES = {
    "STS-B": ("0.5", "4.25"),
    "MNLI": ("entailment", "neutral", "contradiction"),
    "QNLI": ("entailment", "not_entailment"),
    "RTE": ("entailment", "not_entailment"),
}


def write_glue(root):
    choice = random.Random(0)

    def sentence():
        return " ".join(choice.choices(small.LETTERS, k=4))

    def write(folder, name, columns, count):
        lines = ["\t".join(columns)]
        for number in range(count):
            known = dict.fromkeys(LABELS, choice.choice(VALUES.get(folder, "01")))
            known |= dict.fromkeys(("index", "id"), str(number)) | {"#1 ID": "1", "#2 ID": "2"}
            lines.append("\t".join(known.get(column) or sentence() for column in columns))
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")

    for folder, names in COLUMNS.items():
        columns = [name.replace("_", " ") if "#" in name else name for name in names.split()]
        texts = [name for name in columns if name not in (*LABELS, "index", "id")]
        for part in ("_matched", "_mismatched") if folder == "MNLI" else ("",):
            write(folder, f"dev{part}", columns, 8)
            write(folder, f"test{part}", ["index", *texts], 3)
        write(folder, "train", columns, 16)
    for name in ("train", "dev"):
        rows = [f"x\t{choice.randrange(2)}\t\t{sentence()}\n" for _ in range(16)]
        (root / "CoLA").mkdir(exist_ok=True)
        (root / "CoLA" / f"{name}.tsv").write_text("".join(rows))
    write("CoLA", "test", ["index", "sentence"], 3)
    write("AX", "AX", ["index", "sentence1", "sentence2"], 3)


@pytest.mark.slow
def test_all_tasks_give_a_table_and_a_submission(tmp_path):
    small.write_bert(tmp_path / "hf")
    write_glue(tmp_path / "glue_data")
    values = small.OVERRIDES | {
        "init_from": tmp_path / "hf",
        "data.input": tmp_path / "glue_data",
        "train.num_epochs": 1.0,
        "eval.predict": "test",
    }
    directory = tmp_path / "out"
    command = [sys.executable, "-m", "bert_jax.finetune", f"--workdir={directory}"]
    command.append("--config=configs/finetune/glue.py:all")
    command += [f"--config.{key}={value}" for key, value in values.items()]
    finished = runs.run(command, timeout=1800)
    assert finished.returncode == 0, finished.stderr
    summary = json.loads((directory / "glue.json").read_text())
    assert len(summary["scores"]) == 9 and len(summary["scores"]["mnli"]) == 2
    counted = [s for t, v in summary["scores"].items() if t != "wnli" for s in v.values()]
    assert summary["average"] == pytest.approx(sum(counted) / 9)
    assert "average" in finished.stdout
    # The names that gluebenchmark.com requires.
    assert {path.name for path in directory.glob("*/predictions/*")} == {
        f"{name}.tsv"
        for name in "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX".split()
    }
    for path in directory.glob("*/predictions/*"):
        lines = path.read_text().splitlines()
        assert lines[0] == "index\tprediction" and len(lines) == 4, path
