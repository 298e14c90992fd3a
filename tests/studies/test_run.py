"""A study runs its parts once, stops them on a signal, and ends with a table and a page."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.studies import run
from bert_jax.studies.run import Part
from tests import browser, refusals, runs
from tests.finetuning.small import write_rows

# Appends its name to a file and writes its result.
WORK = """
import pathlib, sys
name, folder = sys.argv[1:]
print("train: 50 %, 0:00:01 left")
with open("ran.txt", "a") as file:
    file.write(name)
if name == "b" and not pathlib.Path("fixed").exists():
    sys.exit("some trace\\nerror: the rate is wrong")
pathlib.Path(folder).mkdir(exist_ok=True)
pathlib.Path(folder, "done.json").write_text("{}")
"""


def part(folder, name, code=WORK):
    directory = epath.Path(folder) / name
    command = [sys.executable, "-c", code, name, str(directory)]
    return Part(f"part {name}", "kind", 1.0, directory, "done.json", command, ConfigDict())


def test_finished_parts_are_not_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    parts = [part(tmp_path, name) for name in "abc"]
    log = tmp_path / "logs" / "02_part_b.log"
    with pytest.raises(UserError) as error, run._StopSignals() as signals:
        run._run(parts, epath.Path(tmp_path), signals)
    assert str(error.value) == (
        f"the part b ended with exit status 1: the rate is wrong; its log is {log}"
    )
    assert "some trace" in log.read_text() and sys.executable in log.read_text()
    (tmp_path / "fixed").touch()
    capsys.readouterr()
    with run._StopSignals() as signals:
        assert run._run(parts, epath.Path(tmp_path), signals)
    assert (tmp_path / "ran.txt").read_text() == "abbc"
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == [
        "1 of 3 parts are finished",
        "part 2 of 3: part b",
        "  train: 50 %, 0:00:01 left",
    ]
    assert shown[3].startswith("part 3 of 3: part c; about 0:00:0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_current_part_and_the_study(tmp_path, number, capsys):
    # The part ends as a run does: it notes SIGTERM and exits with status 0.
    code = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(sys.argv[2]).touch(), sys.exit(0)))
print("train: 1 %", flush=True)
time.sleep(60)
"""
    parts = [part(tmp_path, "a", code), part(tmp_path, "b")]

    def send():
        log = tmp_path / "logs" / "01_part_a.log"
        while not (log.exists() and "train: 1 %" in log.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    with run._StopSignals() as signals:
        assert not run._run(parts, epath.Path(tmp_path), signals)
    sender.join()
    assert (tmp_path / "a").exists() and not (tmp_path / "logs" / "02_part_b.log").exists()
    name = signal.Signals(number).name
    assert f"Stopped by {name}: run the same command to continue." in capsys.readouterr().out


def command(workdir, *more):
    return [sys.executable, "-m", "bert_jax.compare", f"--workdir={workdir}", *more]


@pytest.mark.slow
def test_a_study_is_killed_and_continued(tmp_path):
    write_rows(tmp_path / "rows")
    (tmp_path / "texts").mkdir()
    texts = runs.write_speeches(tmp_path / "texts")
    # The configs differ in these keys.
    own = ("model.hidden_size", "model.num_hidden_layers", "model.num_attention_heads")
    values = {k: v for k, v in runs.TINY_RUN.items() if k not in (*own, "model.intermediate_size")}
    values |= {"data.input": texts, "data.max_sentence_tokens": 16}
    flags = [
        "--configs=sizes:tiny_L1_H128_A2,sizes:tiny_L2_H128_A2",
        f"--tasks=table={tmp_path / 'rows'}",
        "--seeds=2",
        "--equal=flops",
        *(f"--config.{key}={value}" for key, value in values.items()),
        "--finetune.train.num_epochs=1",
        "--finetune.data.max_seq_length=16",
    ]
    study = tmp_path / "study"
    finished = study / "pretrained" / "tiny_L1_H128_A2_seed_0" / "results.json"
    second = study / "pretrained" / "tiny_L2_H128_A2_seed_0"
    process = subprocess.Popen(
        command(study, *flags), env=runs.environment(), cwd=runs.ROOT, stdout=subprocess.PIPE
    )
    while not (second / "checkpoints").exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=600)
    assert process.returncode == 0
    assert not (second / "results.json").exists()
    before = finished.stat().st_mtime_ns
    message = refusals.command("compare", f"--workdir={study}", *flags, "--seeds=3")
    assert f"the study in {study} began with --seeds=2, not 3" in message

    ended = runs.run(command(study, *flags), timeout=1200)
    assert ended.returncode == 0, ended.stderr
    assert "1 of 5 parts are finished" in ended.stdout
    assert finished.stat().st_mtime_ns == before
    results = json.loads((study / "results.json").read_text())
    small, large = results["models"]
    # Numbers of steps are rounded, and a step of the last stage costs more than the mean step.
    mean_step = large["flops"] / large["steps"]
    assert small["steps"] == 60 and abs(small["flops"] - large["flops"]) <= mean_step
    loss = json.loads(finished.read_text())["mlm_loss"]
    assert small["loss"]["values"] == [loss] and f"{loss:.3f}" in ended.stdout
    sweep = json.loads((study / "finetuned/tiny_L2_H128_A2_seed_0/table/sweep.json").read_text())
    scores = [100 * one["score"] for one in sweep["runs"]]
    assert large["scores"]["table"]["values"] == scores and len(scores) == 2
    # Both models read the text that the first one prepared.
    assert not (second / "data").exists()

    # The record of a finished part shows that a config has changed since. This is the last part.
    changed = next(study.glob("finetuned/tiny_L2*/table/runs/*/config.json"))
    changed.write_text(changed.read_text().replace('"num_epochs": 1.0', '"num_epochs": 2.0'))
    message = refusals.command("compare", f"--workdir={study}", *flags)
    assert "its config has changed since: train.num_epochs was 2.0 and is 1.0; restore" in message

    page = (study / "report.html").read_text()
    assert f"{loss:.3f}" in page and page.count("<svg") >= 4
    # They share the store of the first, so its path is no difference that matters.
    assert "model.num_hidden_layers" in page and "data.store" not in page
    for link in ("tiny_L1_H128_A2", "tiny_L2_H128_A2"):
        assert f'href="pretrained/{link}_seed_0/report.html"' in page
    if program := browser.find_browser():
        show = browser.Browser(program, tmp_path)
        assert show(page, 'texts("h2").length') == 4
