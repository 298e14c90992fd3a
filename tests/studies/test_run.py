"""A study runs its runs once, stops on a signal, refuses other flags, and ends with tables."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
from absl import flags
from ml_collections import ConfigDict

from bert_jax import load_config
from bert_jax.base.errors import UserError
from bert_jax.config import cli, command_line, finetuning, validate
from bert_jax.models import BertConfig
from bert_jax.objectives.flops import pretraining_flops_per_sequence
from bert_jax.pretraining.build import make_objective
from bert_jax.reports.record import read_run
from bert_jax.studies import run
from bert_jax.training.stages import resolve_stages
from tests import runs
from tests.finetuning.small import write_rows
from tests.reports.test_page import RESULTS, write_run

STUDIES = ("table5", "table6", "table8", "figure5", "families")


def parsed(words):
    values = flags.FlagValues()
    cli.define_config_flag(values)
    flags.DEFINE_bool("sweep", False, "", flag_values=values)
    command_line.parse(["command", *words], values)
    return values.config


def flops_of(config, teacher):
    model, terms = BertConfig(**config.model), make_objective(config).terms
    total = 0
    for stage in resolve_stages(config):
        lengths = stage.max_seq_length, stage.max_predictions_per_seq
        of_sequence = pretraining_flops_per_sequence(model, terms, *lengths, teacher)
        total += stage.num_steps * stage.batch_size * of_sequence
    return total


@pytest.mark.parametrize("study", STUDIES)
def test_the_runs_of_a_study_have_valid_configs(study):
    commands = map(shlex.split, load_config(f"studies:{study},glue data").runs)
    models, tuned = {}, 0
    for name, command, *words in commands:
        config = parsed(words)
        if command == "main":
            validate(config)
            models[name] = config
            continue
        tuned += 1
        finetuning.validate(config)
        assert config.data.input == "glue data/SST-2" and config.sweep.seeds == (0, 1)
        model, *checkpoint = config.init_from.removeprefix("{study}/").split("/")
        if checkpoint:
            folder, step = checkpoint
            run = models[model]
            assert folder == "checkpoints" and int(step) <= run.train.num_steps
            assert int(step) % run.checkpoint.keep_every_steps == 0
        assert model in models
    assert tuned == len(models) * (5 if study == "figure5" else 1) + 1
    runs_alone = map(shlex.split, load_config(f"studies:{study}").runs)
    assert [name for name, *_ in runs_alone] == [*models]


def test_the_families_have_equal_flops():
    configs = [parsed(shlex.split(line)[2:]) for line in load_config("studies:families").runs]
    bert, *_ = configs
    for config in configs:
        teacher = BertConfig(**bert.model) if config.objective.teacher else None
        assert flops_of(config, teacher) == pytest.approx(1e14, rel=1e-3)


# Stands for Python: appends its arguments to a file, and ends as a run does. It notes SIGTERM and
# exits with status 0.
PROGRAM = """#!{python}
import pathlib, signal, sys, time
*_, command, flag, workdir = sys.argv
folder = pathlib.Path(workdir.partition("=")[2])
with open(folder.parent / "ran.txt", "a") as file:
    file.write(f"{{folder.name}} {{command}} {{flag}}\\n")
folder.mkdir(exist_ok=True)
if flag == "--fail":
    sys.exit(3)
if flag == "--wait":
    signal.signal(signal.SIGTERM, lambda *_: (folder / "saved").touch() or sys.exit(0))
    (folder / "started").touch()
    time.sleep(60)
(folder / "results.json").write_text("{{}}")
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Returns a function that runs a study of fake runs, and the file of what has run."""
    program = tmp_path / "python"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(run, "_check_flags", lambda command, words: None)
    monkeypatch.setattr(run, "_report", lambda runs, path: print("reported"))
    monkeypatch.setattr(run, "read_runs", lambda directory: [directory.name])
    folder = tmp_path / "study"

    def compare(*lines):
        run.compare(ConfigDict({"runs": lines, "main": (), "finetune": ()}), folder)

    return compare, folder


def test_a_failed_run_stops_the_study(study, capsys):
    compare, folder = study
    with pytest.raises(
        UserError,
        match="b ended with exit status 3 before it was finished",
    ):
        compare("a main --seed=1", "b main --fail", "c main --seed=2")
    compare("a main --seed=1", "b finetune --init={study}/a", "c main --seed=2")
    assert (folder / "ran.txt").read_text().splitlines() == [
        "a bert_jax.main --seed=1",
        "b bert_jax.main --fail",
        "a bert_jax.main --seed=1",
        f"b bert_jax.finetune --init={folder}/a",
        "c bert_jax.main --seed=2",
    ]
    shown = capsys.readouterr().out
    assert "run 2 of 3: b" in shown and "reported" in shown
    (folder / "config.json").touch()
    with pytest.raises(UserError, match="holds a run, not a study"):
        compare("a main --seed=1")


def test_two_runs_with_one_name_are_refused(study):
    compare, folder = study
    with pytest.raises(UserError, match="two runs of the study are named 'a': give each its own"):
        compare("a main --seed=1", "b main --seed=1", "a main --seed=2")
    assert not folder.exists()


@pytest.mark.parametrize(
    "flags,message",
    [
        # A comma between flags.
        ({"main": ("--config.data.sources=en=a", "de=b")}, r"b \(.*main\): unexpected argument"),
        ({"main": ("--config.sed=1",)}, r"b \(.*main\): unknown config key sed; did you mean seed"),
        ({"main": ("--sweep",)}, r"b \(.*main\): unknown flag --sweep"),
        ({"main": ("--config.train.num_steps=0",)}, r"b \(.*main\): config.train.num_steps is 0"),
        (
            {"finetune": ("--config.seed=3",)},
            r"all \(.*\): --config.seed has no effect with --sweep",
        ),
        ({"finetune": ("--config.seed=x",)}, r"all \(.*finetune\): flag --config.seed=x: "),
        ({"finetune": ("--config.train.num_epochs=0",)}, r"all \(.*\): config.train.num_epochs is"),
        ({"runs": ["b train --config=tiny"]}, "the command of b is 'train'; it must be main or"),
        (
            {"runs": ["../b main --config=tiny"]},
            "run of the study is named '../b': a name has no /",
        ),
        ({"main": ("--workdir=x",)}, "b has --workdir=x: a study gives each run its directory"),
    ],
)
def test_wrong_flags_of_any_run_end_the_study_before_the_first(flags, message, tmp_path):
    lines = ["b main --config=tiny", "all finetune --sweep --config=finetune/glue:all"]
    study = ConfigDict({"runs": lines, "main": (), "finetune": ()} | flags)
    with pytest.raises(UserError, match=message):
        run.compare(study, tmp_path / "study")
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_current_run_and_the_study(study, number, capsys):
    compare, folder = study

    def send():
        while not (folder / "a" / "started").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    compare("a main --wait", "b main --seed=1")
    sender.join()
    assert (folder / "a" / "saved").exists() and not (folder / "b").exists()
    name = signal.Signals(number).name
    assert f"Stopped by {name}: run the same command to continue." in capsys.readouterr().out


def test_the_tables_of_a_study(tmp_path):
    (tmp_path / "sst2_a" / "runs").mkdir(parents=True)
    found = [
        read_run(write_run(tmp_path / name, RESULTS | {"mlm_loss": loss}))
        for name, loss in (("a", 3.0), ("b", 2.0))
    ]
    columns = {c.header: list(c.cells) for c in run.table(found, "pre-training").columns}
    assert columns["run"] == ["b", "a"]
    assert columns["masked-LM loss (nats)"] == [f"{x}.000\nbaseline 6.250" for x in (2, 3)]
    assert columns["masked-LM accuracy"] == ["50.0%"] * 2
    assert "model FLOPs" in columns and "parameters" in columns
    settings = [{"learning_rate": 5e-4, "seeds": 2, "median": 3.0, "lowest": 2.5}]
    (tmp_path / "sst2_a" / "sweep.json").write_text(json.dumps({"settings": settings}))
    of_sweep = read_run(write_run(tmp_path / "sst2_a" / "runs" / "rate_1", RESULTS))
    columns = {c.header: list(c.cells) for c in run.table([of_sweep], "sst2").columns}
    assert columns == {
        "sweep": ["sst2_a"],
        "learning rate": ["0.0005"],
        "seeds": ["2"],
        "median": ["3.000"],
        "lowest": ["2.500"],
    }


@pytest.mark.slow
def test_a_study_is_killed_and_continued(tmp_path):
    write_rows(tmp_path / "rows")
    (tmp_path / "texts").mkdir()
    values = runs.TINY_RUN | {"data.input": runs.write_speeches(tmp_path / "texts")}
    pretraining = shlex.join(f"--config.{key}={value}" for key, value in values.items())
    (tmp_path / "mine.py").write_text(f"""
from ml_collections import ConfigDict
def get_config(seed="1"):
    runs = (
        "a main --config=tiny --config.seed=0 {pretraining}",
        "b main --config=tiny --config.data.store={{study}}/a/data {pretraining}"
        f" --config.seed={{seed}}",
        "table_a finetune --sweep --config=finetune/table --config.init_from={{study}}/a "
        "--config.data.input={tmp_path}/rows --config.train.num_epochs=1 "
        "--config.data.max_seq_length=16 '--config.sweep.learning_rates=(1e-3,)' "
        "'--config.sweep.batch_sizes=(8,)' '--config.sweep.seeds=(0, 1)'",
    )
    return ConfigDict({{"runs": runs, "main": (), "finetune": ()}})
""")
    folder = tmp_path / "study"
    command = [sys.executable, "-m", "bert_jax.compare", f"--workdir={folder}"]
    command.append(f"--config={tmp_path / 'mine.py'}")
    process = subprocess.Popen(
        command, env=runs.environment(), cwd=runs.ROOT, stdout=subprocess.PIPE
    )
    while not (folder / "b" / "checkpoints").exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=600)
    assert process.returncode == 0 and not (folder / "b" / "results.json").exists()
    before = (folder / "a" / "checkpoints").stat().st_mtime_ns

    ended = runs.run(command, timeout=1200)
    assert ended.returncode == 0, ended.stderr
    assert (folder / "a" / "checkpoints").stat().st_mtime_ns == before
    loss = json.loads((folder / "b" / "results.json").read_text())["mlm_loss"]
    assert f"{loss:.3f}" in ended.stdout and f"{loss:.3f}" in (folder / "report.html").read_text()
    # Both models read the text that the first one prepared.
    assert not (folder / "b" / "data").exists()
    sweep = json.loads((folder / "table_a" / "sweep.json").read_text())
    assert f"{sweep['settings'][0]['median']:.1%}" in ended.stdout
    assert "<svg" in (folder / "report_table.html").read_text()

    ended = runs.run([*command[:-1], f"--config={tmp_path / 'mine.py'}:2"])
    assert ended.returncode == 1
    assert "b holds another run: its config.seed is 1, not 2; choose another" in ended.stderr
