"""Weights & Biases: what it gets, once, and that its failures end no run."""

import json
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest
from etils import epath

from bert_jax.commands.pretrain import pretrain
from bert_jax.config import default_config
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.tracker import Tracker
from tests import runs
from tests.small_run import small_run, train_with_interruption, write_documents


class Fake:
    """A run of wandb that records what it gets."""

    runs: list = []
    dir, offline, url = "run/files", False, "https://wandb.ai/me/run"

    def __init__(self, id, config, settings, **options):
        self.id, self.config, self.name = id, config, settings["run_name"]
        self.lines, self.summary, self.failed = [], {}, None
        Fake.runs.append(self)

    def define_metric(self, *args, **options):
        pass

    def log(self, values):
        self.lines.append((values["step"], {k: v for k, v in values.items() if k != "step"}))

    def finish(self, exit_code):
        self.failed = bool(exit_code)


class Broken(Fake):
    """Loses the network after its first line."""

    def log(self, values):
        super().log(values)
        if len(self.lines) > 1:
            raise ConnectionError("no route to host")


@pytest.fixture
def fake(monkeypatch):
    module = SimpleNamespace(init=Fake, Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(Fake, "runs", [])
    return module


def config_of(is_tracked=True):
    config = default_config()
    config.log.wandb = is_tracked
    return config


def write(directory, steps, resumed_step=0, config=None):
    directory.mkdir(exist_ok=True)
    with Tracker(config or config_of(), epath.Path(directory)) as found:
        writer = MetricsWriter(directory, resumed_step, resumed_step, tracker=found)
        with closing(writer):
            for step in steps:
                writer.write(step, {"loss": float(step), "mfu": None, "texts": ["a"]})
                writer.write(step, {"eval_loss": float(step)})
        found.summarize({"step": steps[-1], "validation": {"accuracy": 0.5}})


def test_every_line_is_sent_to_the_same_run(tmp_path, fake):
    write(tmp_path / "run", [10, 20, 30])
    write(tmp_path / "run", [20, 30, 40], resumed_step=10)
    first, second = Fake.runs
    assert first.id == second.id == json.loads((tmp_path / "run/tracking.json").read_text())["id"]
    # A resumed run sends its steps again.
    expected = [
        (s, {f"{kind}/loss": float(s)})
        for s in (10, 20, 30, 20, 30, 40)
        for kind in ("train", "eval")
    ]
    assert first.lines + second.lines == expected
    assert first.name == "run" and first.failed is False
    assert second.summary == {"results/step": 40, "results/validation.accuracy": 0.5}


def test_a_broken_tracker_is_left_alone(tmp_path, fake, capsys):
    fake.init = Broken
    write(tmp_path, [10, 20])
    (broken,) = Fake.runs
    assert (
        len(broken.lines) == 2 and len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4
    )
    expected = "warning: wandb: no route to host; the run goes on without it"
    assert capsys.readouterr().out.count(expected) == 1


def test_without_the_key_nothing_is_opened(tmp_path, fake):
    write(tmp_path, [10], config=config_of(is_tracked=False))
    assert not Fake.runs and not (tmp_path / "tracking.json").exists()


def test_a_missing_package_is_named_before_the_work(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError, match="wandb"):
        pretrain(runs.tiny_run(log__wandb=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_of_pretraining(tmp_path, fake):
    texts = write_documents(tmp_path / "texts", 12)
    config = small_run(texts, log__wandb=True, checkpoint__every_steps=3)
    train_with_interruption(config, tmp_path / "run", step=5)
    first, second = Fake.runs
    assert (first.failed, second.failed) == (True, False) and first.id == second.id
    steps = {step for step, line in first.lines + second.lines if "train/loss" in line}
    assert steps == {1, 2, 3, 4, 5, 6}
    assert second.config["train"]["num_steps"] == 6
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert second.summary["results/mlm_loss"] == results["mlm_loss"]
    # A finished run is not tracked again.
    pretrain(config, tmp_path / "run")
    assert len(Fake.runs) == 2
