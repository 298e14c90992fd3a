"""Whole runs of fine-tuning, in real processes: learning, being killed, refusing another's data."""

import json
import random
import shutil
import signal
import sys
import time
from contextlib import closing

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax import config as config_lib
from bert_jax import evaluate, workdir
from bert_jax.config import finetune_config
from bert_jax.errors import UserError
from bert_jax.finetuning import run, task_setup
from bert_jax.finetuning.run import finetune
from bert_jax.interop import formats
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import read_metrics
from tests import runs
from tests.finetuning import small
from tests.test_train import assert_same_bits, newest_checkpoint, wait_for
from tests.test_train import start as start_process

STEPS = 80
# The command, whose steps are long enough to be hit.
SLOW = """
import time
from bert_jax import cli, finetune
from bert_jax.training.recorder import Recorder

def slowly(*args, dispatched=Recorder.dispatched):
    dispatched(*args)
    time.sleep(0.1)

Recorder.dispatched = slowly
finetune.define_flags()
cli.run(finetune.main)
"""


def slow(command):
    return [command[0], "-c", SLOW, *command[3:]]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bert") / "hf"
    small.write_bert(directory)
    return directory


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    small.write_rows(directory)
    return directory


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, bert, data):
    """The work directory of a run that nothing disturbed, and what it printed."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    finished = runs.run(small.command(directory, bert, data, eval__predict="test"))
    assert finished.returncode == 0, finished.stderr
    return directory, finished


def results(directory):
    return json.loads((directory / "results.json").read_text())


def final_state(directory):
    """The newest checkpoint's state and the best one's parameters, as numpy arrays."""
    config = workdir.load_config(directory)
    rows = task_setup.open_setting(config_of(directory), directory).task.rows("train")
    trainer = task_setup.make_trainer(config, task_setup.make_stage(config, rows))
    with closing(Checkpointer(directory / workdir.CHECKPOINTS, read_only=True)) as checkpoints:
        state, _ = checkpoints.restore_newest(trainer.abstract_state())
    best = formats.read(directory)
    return jax.tree.map(np.asarray, state), best.weights


def config_of(directory):
    """The config of a run as its user gave it."""
    config = workdir.load_config(directory)
    with config.unlocked():
        del config["head"], config["labels"]
    return config


def same_end(one, other):
    """Bits of states and best weights, and every number but the times."""
    for ours, theirs in zip(final_state(one), final_state(other), strict=True):
        assert_same_bits(ours, theirs)
    ours, theirs = results(one), results(other)
    for values in (ours, theirs):
        del values["train_sequences_per_second"]
    assert ours == theirs
    ours, theirs = (
        [{k: v for k, v in line.items() if "per_second" not in k} for line in read_metrics(d)]
        for d in (one, other)
    )
    assert ours == theirs


class TestUninterruptedRun:
    def test_learns(self, uninterrupted):
        directory, _ = uninterrupted
        assert results(directory)["score"] > 0.9
        losses = [line["loss"] for line in read_metrics(directory) if "loss" in line]
        assert losses[-1] < losses[0] / 2

    def test_leaves_the_promised_files(self, uninterrupted):
        directory, finished = uninterrupted
        config = json.loads((directory / "config.json").read_text())
        assert config["labels"] == ["no", "yes"] and config["head"] == "sequence_classification"
        assert config["model"]["hidden_size"] == 24, "the weights' own"
        assert (directory / "tokenizer" / "vocab.txt").exists()
        assert list((directory / "tensorboard").glob("events.out.tfevents.*"))
        assert (directory / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert newest_checkpoint(directory) == STEPS
        best = [int(path.name) for path in (directory / "best").iterdir()]
        assert max(best) == results(directory)["best_step"] and len(best) <= 2
        for expected in ("2 labels", "160 train", "accuracy", "bert_jax.convert"):
            assert expected in finished.stdout, expected
        assert "Traceback" not in finished.stderr

    def test_is_scored_at_the_end_of_each_epoch_and_keeps_the_best(self, uninterrupted):
        directory, _ = uninterrupted
        lines = {
            line["step"]: line["eval_accuracy"]
            for line in read_metrics(directory)
            if "eval_accuracy" in line
        }
        assert list(lines) == [20, 40, 60, 80]
        assert results(directory)["score"] == max(lines.values())
        assert lines[results(directory)["best_step"]] == max(lines.values())

    def test_can_be_asked(self, uninterrupted, data):
        """`predict classify` says of a test row what the run's own predictions say."""
        directory, _ = uninterrupted
        command = [sys.executable, "-m", "bert_jax.predict", f"--model={directory}", "--json"]
        text = (data / "test.tsv").read_text().splitlines()[1].split("\t")[0]
        finished = runs.run([*command, "classify", text])
        assert finished.returncode == 0, finished.stderr
        found = {x["label"]: x["probability"] for x in json.loads(finished.stdout)["labels"]}
        lines = (directory / "predictions" / "test.csv").read_text().splitlines()
        _, best, *probabilities = lines[1].split(",")
        assert next(iter(found)) == best
        expected = [float(probability) for probability in probabilities]
        np.testing.assert_allclose([found["no"], found["yes"]], expected, atol=1e-4)
        finished = runs.run([*command, "tag", text])
        assert finished.returncode == 1 and "it can classify" in finished.stderr

    def test_writes_predictions_for_every_row_of_the_test(self, uninterrupted, data):
        directory, _ = uninterrupted
        lines = (directory / "predictions" / "test.csv").read_text().splitlines()
        assert lines[0] == "index,prediction,p(no),p(yes)" and len(lines) == 13
        truth = [line.split("\t")[1] for line in (data / "test.tsv").read_text().splitlines()[1:]]
        right = [line.split(",")[1] == label for line, label in zip(lines[1:], truth, strict=True)]
        assert sum(right) >= 10

    def test_a_second_start_says_that_it_is_finished(self, uninterrupted, bert, data):
        directory, _ = uninterrupted
        before = (directory / "metrics.jsonl").read_bytes()
        again = runs.run(small.command(directory, bert, data, eval__predict="test"))
        assert again.returncode == 0, again.stderr
        assert "finished" in again.stdout and "accuracy" in again.stdout
        assert (directory / "metrics.jsonl").read_bytes() == before

    def test_how_often_it_is_scored_is_part_of_it(self, uninterrupted):
        """The best of other steps would be another result."""
        config = workdir.load_config(uninterrupted[0])
        assert workdir.check(uninterrupted[0], config) == []
        config.eval.every_steps = 7
        with pytest.raises(UserError, match="its config.eval.every_steps is 0, not 7"):
            workdir.check(uninterrupted[0], config)

    def test_is_read_by_its_step_or_before_it_was_scored(self, uninterrupted, tmp_path):
        best = results(uninterrupted[0])["best_step"]
        for name in ("checkpoints", "best"):
            directory = shutil.copytree(uninterrupted[0], tmp_path / name)
            shutil.rmtree(directory / name)
            (directory / name).mkdir()
        assert formats.read(tmp_path / "checkpoints", step=best).training["step"] == best
        assert formats.read(tmp_path / "best").training["step"] == STEPS
        with pytest.raises(UserError, match="step is -1; it must be that of a checkpoint"):
            formats.read(tmp_path / "best", step=-1)

    def test_is_taken_to_transformers_with_its_labels(self, uninterrupted, data, tmp_path):
        directory, _ = uninterrupted
        command = [runs.sys.executable, "-m", "bert_jax.convert", f"--input={directory}"]
        finished = runs.run([*command, f"--output={tmp_path / 'hf'}", "--to=huggingface"])
        assert finished.returncode == 0, finished.stderr
        config = json.loads((tmp_path / "hf" / "config.json").read_text())
        assert config["architectures"] == ["BertForSequenceClassification"]
        assert config["id2label"] == {"0": "no", "1": "yes"}
        assert "accuracy" in (tmp_path / "hf" / "README.md").read_text()
        # There it answers us as well, with the length it has learned.
        ours, theirs = bert_jax.load(directory), bert_jax.load(tmp_path / "hf")
        text = (data / "test.tsv").read_text().splitlines()[1].split("\t")[0]
        assert theirs.classify(text) == ours.classify(text)
        assert theirs.max_length == ours.max_length == 16 and theirs.notes == []

    def test_evaluate_says_where_its_scores_are(self, uninterrupted):
        with pytest.raises(UserError, match="fine-tuned.*results.json"):
            evaluate.evaluate_workdir(uninterrupted[0])

    def test_is_no_directory_for_pre_training(self, uninterrupted):
        with pytest.raises(UserError, match="holds a fine-tuning run; choose another"):
            workdir.check(uninterrupted[0], config_lib.default_config())

    def test_its_config_reads_back(self, uninterrupted):
        directory, _ = uninterrupted
        stored = json.loads((directory / "config.json").read_text())
        assert config_lib.to_dict(workdir.load_config(directory)) == stored


class TestInterruptedRun:
    def test_killed_and_stopped_it_ends_with_the_same_bits(
        self, uninterrupted, bert, data, tmp_path
    ):
        command = small.command(tmp_path, bert, data, eval__predict="test")
        moments = random.Random(3)
        for steps in (10, 20):
            process = start_process(slow(command))
            goal = newest_checkpoint(tmp_path) + steps
            wait_for(lambda goal=goal: newest_checkpoint(tmp_path) >= goal, process)
            # Anywhere: between steps, while scoring, in the middle of a save.
            time.sleep(moments.uniform(0.0, 0.4))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert process.returncode == -signal.SIGKILL
        killed_at = newest_checkpoint(tmp_path)
        assert 30 <= killed_at < STEPS

        # Saves when it is told to stop, and not before.
        process = start_process([*slow(command), "--config.checkpoint.every_steps=1000"])
        lines = len(read_metrics(tmp_path))
        wait_for(lambda: len(read_metrics(tmp_path)) >= lines + 2, process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        assert f"going on from step {killed_at}" in output and "Stopped by SIGTERM" in output
        stopped_at = newest_checkpoint(tmp_path)
        assert killed_at < stopped_at < STEPS

        finished = runs.run(command)
        assert finished.returncode == 0, finished.stderr
        assert f"going on from step {stopped_at}" in finished.stdout
        same_end(tmp_path, uninterrupted[0])

    def test_stopped_while_it_predicts(self, bert, data, tmp_path, monkeypatch):
        """Neither the run nor a sweep goes on then, and the next start predicts what is left."""
        config = finetune_config("table")
        files = {"init_from": str(bert), "data.input": str(data), "eval.predict": "all"}
        values = small.OVERRIDES | files | {"train.num_epochs": 1.0}
        config.update_from_flattened_dict(values)
        there = tmp_path / "run"
        predict = run.predict

        def stopped(trainer, params, rows, *args):
            if (there / "predictions").exists():
                signal.raise_signal(signal.SIGTERM)
            return predict(trainer, params, rows, *args)

        with monkeypatch.context() as patch:
            patch.setattr(run, "predict", stopped)
            assert finetune(config, there) is None
            assert results(there)["step"] == 20 and not list((there / "predictions").iterdir())
            assert finetune(config, there) is None
        assert finetune(config, there) == results(there)
        assert len(list((there / "predictions").iterdir())) == 2

    def test_stopped_after_its_last_step(self, bert, data, tmp_path, monkeypatch):
        """A sweep must hear of it, though this run had nothing left to do."""
        config = finetune_config("table")
        files = {"init_from": str(bert), "data.input": str(data), "train.num_epochs": 0.1}
        config.update_from_flattened_dict(small.OVERRIDES | files)

        def stopped(results, directory):
            signal.raise_signal(signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(run, "summarize", stopped)
            assert finetune(config, tmp_path) is None
            assert finetune(config, tmp_path) is None, "told so when it was finished before"
        assert finetune(config, tmp_path) == results(tmp_path)

    @pytest.mark.slow
    def test_goes_on_without_the_weights_it_began_with(self, uninterrupted, bert, data, tmp_path):
        there = tmp_path / "moved"
        shutil.copytree(bert, there)
        directory = tmp_path / "run"
        process = start_process(small.command(directory, there, data))
        wait_for(lambda: newest_checkpoint(directory) >= 10, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        shutil.rmtree(there)
        finished = runs.run(small.command(directory, there, data))
        assert finished.returncode == 0, finished.stderr


class TestRefusals:
    """Directories and data of other runs; each ends with one clear sentence."""

    @pytest.mark.parametrize(
        "overrides,said",
        [
            ({"train__batch_size": 7}, r"config.train.batch_size is 8, not 7"),
            ({"table__label_column": "text"}, r"holds another run"),
        ],
    )
    def test_another_runs_directory(self, uninterrupted, bert, data, overrides, said):
        small.refused(small.command(uninterrupted[0], bert, data, **overrides), said)

    def test_other_data(self, uninterrupted, bert, tmp_path, data):
        directory = tmp_path / "run"
        shutil.copytree(uninterrupted[0], directory)
        (directory / "results.json").unlink()
        shutil.rmtree(directory / "predictions")
        other = tmp_path / "data"
        small.write_rows(other, seed=5)
        text = (directory / "config.json").read_text()
        (directory / "config.json").write_text(text.replace(str(data), str(other)))
        small.refused(small.command(directory, bert, other), "began with another corpus")

    def test_other_data_of_a_finished_run(self, uninterrupted, bert, tmp_path, data):
        directory, other = tmp_path / "run", tmp_path / "data"
        shutil.copytree(uninterrupted[0], directory)
        shutil.copytree(data, other)
        small.write_rows(other, seed=5)
        text = (directory / "config.json").read_text()
        (directory / "config.json").write_text(text.replace(str(data), str(other)))
        small.refused(small.command(directory, bert, other), "began with another corpus")
