"""Experiment trackers: what they get, once, and that their failures end no run."""

import importlib.util
import json
import os
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from etils import epath

from bert_jax.base.errors import UserError
from bert_jax.config import default_config
from bert_jax.config.common import COMMON
from bert_jax.finetuning import run as finetuning
from bert_jax.pretraining import run as pretraining
from bert_jax.training import trackers
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.trackers import Trackers, check_installed
from tests import runs
from tests.finetuning import small
from tests.small_run import (  # noqa: F401
    compiled_once,
    small_run,
    train_with_interruption,
    write_documents,
)


class Fake:
    """Records what a tracker gets."""

    runs: list = []

    def __init__(self, config, directory, run_id):
        self.config, self.id, self.name, self.where = config, run_id, directory.name, "in memory"
        self.lines, self.summary, self.failed = [], {}, None
        Fake.runs.append(self)

    def log(self, step, values):
        self.lines.append((step, values))

    def summarize(self, step, values):
        self.summary = values

    def finish(self, failed):
        self.failed = failed


class Broken(Fake):
    """Loses the network after its first line."""

    def log(self, step, values):
        super().log(step, values)
        if len(self.lines) > 1:
            raise ConnectionError("no route to host")


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(Fake, "runs", [])
    monkeypatch.setattr(trackers, "_KINDS", {"wandb": Fake, "trackio": Broken})
    for module in (pretraining, finetuning):
        monkeypatch.setattr(module, "check_installed", lambda config: None)


def config_with(*names):
    config = default_config()
    config.log.trackers = names
    return config


def write(config, directory, steps, resumed_step):
    directory.mkdir(exist_ok=True)
    with Trackers(config, epath.Path(directory)) as found:
        writer = MetricsWriter(directory, resumed_step, resumed_step, trackers=found)
        with closing(writer):
            for step in steps:
                writer.write(step, {"loss": float(step), "mfu": None, "texts": ["a"]})
                writer.write(step, {"eval_loss": float(step)})


def test_every_line_is_sent_once_to_the_same_run(tmp_path, fake):
    write(config_with("wandb"), tmp_path / "run", [10, 20, 30], resumed_step=0)
    write(config_with("wandb"), tmp_path / "run", [20, 30, 40], resumed_step=10)
    first, second = Fake.runs
    assert first.id == second.id == json.loads((tmp_path / "run/tracking.json").read_text())["id"]
    expected = [
        (s, {f"{kind}/loss": float(s)}) for s in (10, 20, 30, 40) for kind in ("train", "eval")
    ]
    assert first.lines + second.lines == expected
    assert first.name == "run" and first.failed is False


def test_a_broken_tracker_is_left_alone(tmp_path, fake, capsys):
    write(config_with("trackio", "wandb"), tmp_path, [10, 20], resumed_step=0)
    broken, healthy = Fake.runs
    assert len(broken.lines) == 2 and len(healthy.lines) == 4
    expected = "warning: trackio: no route to host; the run goes on without this tracker"
    assert capsys.readouterr().out.count(expected) == 1


def test_without_the_key_nothing_is_opened(tmp_path, fake):
    write(config_with(), tmp_path, [10], resumed_step=0)
    assert not Fake.runs and not (tmp_path / "tracking.json").exists()


def test_a_damaged_id_is_refused(tmp_path, fake):
    (tmp_path / "tracking.json").write_text('{"id": "../x"}')
    with pytest.raises(UserError, match="tracking.json is damaged: the id is '../x'"):
        Trackers(config_with("wandb"), epath.Path(tmp_path))


def test_a_missing_package_is_named_before_the_work(monkeypatch, tmp_path):
    assert COMMON["log"]["trackers"].choices == tuple(trackers._KINDS)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = r"log.trackers has wandb, whose package is missing: pip install -e '.\[wandb\]'"
    with pytest.raises(UserError, match=message):
        pretraining.train(runs.tiny_run(log__trackers=("wandb",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_folder_that_wandb_makes_is_not_its_package(monkeypatch, tmp_path):
    (tmp_path / "trackio").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(UserError, match="trackio, whose package is missing"):
        check_installed(config_with("trackio"))


def test_an_interrupted_run_of_pretraining(tmp_path, fake):
    texts = write_documents(tmp_path / "texts", 12)
    config = small_run(texts, log__trackers=("wandb",), checkpoint__every_steps=3)
    # Step 4 is logged before the interruption and again after it.
    train_with_interruption(config, tmp_path / "run", step=5)
    first, second = Fake.runs
    assert (first.failed, second.failed) == (True, False) and first.id == second.id
    lines = first.lines + second.lines
    assert [step for step, line in lines if "train/loss" in line] == [1, 2, 3, 4, 5, 6]
    assert second.config.train.num_steps == 6
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert second.summary["results/mlm_loss"] == results["mlm_loss"]
    # A finished run is not tracked again.
    pretraining.train(config, tmp_path / "run")
    assert len(Fake.runs) == 2


def test_a_run_of_finetuning(tmp_path, fake):
    small.write_bert(tmp_path / "bert")
    small.write_rows(tmp_path / "rows")
    config = small.config(
        tmp_path / "bert", tmp_path / "rows", train__num_epochs=1.0, log__trackers=("wandb",)
    )
    results = finetuning.finetune(config, tmp_path / "run")
    (tracked,) = Fake.runs
    assert [line["eval/accuracy"] for _, line in tracked.lines if "eval/accuracy" in line]
    assert tracked.summary["results/validation.accuracy"] == results["validation"]["accuracy"]


SCRIPT = """
import sys
from etils import epath
from bert_jax.config import default_config
from bert_jax.training.trackers import Trackers
config = default_config()
config.log.trackers = (sys.argv[1],)
with Trackers(config, epath.Path(sys.argv[2])) as found:
    found.log(int(sys.argv[3]), {"train/loss": 2.5})
    found.summarize({"step": 7, "mlm_loss": 1.5, "by_source": {"en": {"mlm_loss": 1.0}}})
"""


def track(name, directory, step, **variables):
    """Tracks a run with the real package, in a process of its own; returns its output."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install -e '.[{name}]'")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, str(directory), str(step)],
        cwd=runs.ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return done.stdout


def wandb_records(path: Path):
    """Reads the protobufs of a file in LevelDB's log format, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts = path.read_bytes(), 7, b""
    while at < len(content):
        _, length, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # A whole record, or the end of one.
            yield Record.FromString(parts)
            parts = b""
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768


class TestWandb:
    def records(self, directory):
        (id,) = {json.loads((directory / "tracking.json").read_text())["id"]}
        for file in sorted(directory.glob(f"wandb/offline-run-*-{id}/*.wandb")):
            yield list(wandb_records(file))

    def test_offline(self, tmp_path):
        directory = tmp_path / "mine"
        directory.mkdir()
        for step in (5, 6):
            printed = track("wandb", directory, step, WANDB_MODE="offline")
            assert f"wandb sync {directory}/wandb/offline-run-" in printed
        sessions = list(self.records(directory))
        assert len(sessions) == 2
        for step, records in zip((5, 6), sessions, strict=True):
            (run,) = [record.run for record in records if record.HasField("run")]
            assert (run.project, run.display_name) == ("bert_jax", "mine")
            config = {item.key: json.loads(item.value_json) for item in run.config.update}
            assert config["model"]["hidden_size"] == 768
            lines = [
                {"/".join(item.nested_key) or item.key: item.value_json for item in r.history.item}
                for r in records
                if r.HasField("history")
            ]
            assert (lines[0]["step"], lines[0]["train/loss"]) == (str(step), "2.5")
            summary = {
                "/".join(item.nested_key) or item.key: item.value_json
                for record in records
                for item in record.summary.update
            }
            assert summary["results/mlm_loss"] == "1.5"
            assert summary["results/by_source.en.mlm_loss"] == "1.0"
            # Nothing describes the machine.
            assert not any(record.HasField("environment") for record in records)
        names = {file.name for file in (directory / "wandb").rglob("files/*")}
        assert not names & {"requirements.txt", "wandb-metadata.json", "output.log"}

    def test_without_network_the_run_stays_on_disk(self, tmp_path):
        variables = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "a" * 40}
        printed = track("wandb", tmp_path, 5, WANDB_INIT_TIMEOUT="2", **variables)
        assert "warning: wandb: " in printed and "; this part of the run stays on disk" in printed
        ((*records,),) = self.records(tmp_path)
        assert any(record.HasField("history") for record in records)

    def test_without_a_key_the_run_stays_on_disk(self, tmp_path):
        home = {"HOME": str(tmp_path / "home"), "NETRC": str(tmp_path / "none")}
        printed = track("wandb", tmp_path, 5, WANDB_API_KEY="", **home)
        assert "No API key configured" in printed and "stays on disk" in printed


class TestTrackio:
    def rows(self, folder, table):
        with closing(sqlite3.connect(folder / "bert_jax.db")) as database:
            names = "run_name, step, metrics" if table == "metrics" else "run_name, config"
            rows = database.execute(f"SELECT {names} FROM {table} ORDER BY id").fetchall()
        return [(*row[:-1], json.loads(row[-1])) for row in rows]

    def test_locally(self, tmp_path):
        store, directory = tmp_path / "store", tmp_path / "mine"
        directory.mkdir()
        for step in (5, 6):
            printed = track("trackio", directory, step, TRACKIO_DIR=str(store))
        name = f"mine-{json.loads((directory / 'tracking.json').read_text())['id']}"
        assert printed == f"trackio: `trackio show --project bert_jax` shows the run {name}\n"
        results = {"results/mlm_loss": 1.5, "results/by_source.en.mlm_loss": 1.0, "results/step": 7}
        assert self.rows(store, "metrics") == [
            *((name, 5, {"train/loss": 2.5}), (name, 7, results)),
            *((name, 6, {"train/loss": 2.5}), (name, 7, results)),
        ]
        ((_, config),) = self.rows(store, "configs")
        assert config["model"]["hidden_size"] == 768

    def test_without_network_the_run_goes_on(self, tmp_path):
        server = {"TRACKIO_SERVER_URL": "http://127.0.0.1:9", "TRACKIO_WRITE_TOKEN": "x"}
        track("trackio", tmp_path, 5, TRACKIO_DIR=str(tmp_path / "store"), **server)
