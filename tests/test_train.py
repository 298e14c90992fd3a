"""Whole runs in real processes: they learn, resume, are killed and are stopped."""

import json
import os
import random
import shutil
import signal
import sys
import time

import jax
import numpy as np
import pytest

from bert_jax import config as config_lib
from bert_jax import prepare, train, workdir
from bert_jax.errors import UserError
from bert_jax.training.metrics import read_metrics
from bert_jax.training.recorder import Recorder
from tests import runs
from tests.runs import assert_same_bits, final_state, newest_checkpoint, start, wait_for

TIMELESS = "step loss mlm_loss nsp_loss mlm_accuracy nsp_accuracy learning_rate grad_norm".split()
LOGGED = {*TIMELESS, "sequences_per_second", "tokens_per_second", "mfu"}
EVALUATE = [sys.executable, "-m", "bert_jax.evaluate"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A token store of real text, the State of the Union addresses."""
    directory = tmp_path_factory.mktemp("store") / "store"
    data = config_lib.default_config().data
    data.num_processes, data.heldout_fraction = 1, 0.2
    prepare.prepare(data, runs.TINY_RUN["model.vocab_size"], directory, show_progress=False)
    return directory


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, store):
    """The work directory of a run that nothing disturbed."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    output = runs.succeed(runs.main_command(directory, data__store=store))
    (directory / "output.txt").write_text(output)
    return directory


def training_lines(directory):
    return [line for line in read_metrics(directory) if "loss" in line]


class TestUninterruptedRun:
    def test_prints_what_a_person_wants_to_know(self, uninterrupted):
        output = (uninterrupted / "output.txt").read_text()
        for expected in (
            "masked LM + next sentence: ",
            "steps 1 to 42: 8 sequences of 24 tokens a step",
            f"starting in {uninterrupted}",
            "step 20: held out: masked-LM loss ",
            "held-out documents",
            "baseline",
            "next-sentence accuracy",
            "sequences/s",
            str(uninterrupted / "checkpoints" / "60"),
            str(uninterrupted / "curves.png"),
            "python -m bert_jax.evaluate",
        ):
            assert expected in output, expected
        assert "bytes a device" not in output, "one device needs no table"
        assert "\x1b" not in output, "no control characters where there is no terminal"

    def test_leaves_the_promised_files(self, uninterrupted):
        stored = json.loads((uninterrupted / "config.json").read_text())
        config = workdir.load_config(uninterrupted)
        config_lib.validate(config)
        assert config_lib.to_dict(config) == stored and stored["train"]["num_steps"] == 60
        assert (uninterrupted / "tokenizer" / "vocab.txt").exists()
        assert (uninterrupted / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert list((uninterrupted / "tensorboard").glob("events.out.tfevents.*"))
        assert newest_checkpoint(uninterrupted) == 60

    def test_logs_the_fixed_names_and_learns(self, uninterrupted):
        lines = training_lines(uninterrupted)
        assert [line["step"] for line in lines] == list(range(5, 61, 5))
        for line in lines:
            assert LOGGED <= set(line)
            assert line["loss"] == pytest.approx(line["mlm_loss"] + line["nsp_loss"], rel=1e-5)
            assert line["mfu"] is None, "no peak is known for a CPU"
            # The second stage begins after step 42.
            assert line["seq_length"] == (24 if line["step"] <= 40 else 48)
        assert lines[-1]["mlm_loss"] < lines[0]["mlm_loss"] - 0.5
        evaluated = [x["step"] for x in read_metrics(uninterrupted) if "eval_mlm_loss" in x]
        assert evaluated == [20, 40, 60]

    def test_a_second_start_reprints_the_results(self, uninterrupted, store):
        before = (uninterrupted / "metrics.jsonl").read_bytes()
        output = runs.succeed(runs.main_command(uninterrupted, data__store=store))
        assert "This run is finished" in output and "masked-LM loss" in output
        assert (uninterrupted / "metrics.jsonl").read_bytes() == before

    def test_the_evaluate_command_finds_the_same(self, uninterrupted, tmp_path):
        output = tmp_path / "out.json"
        runs.succeed([*EVALUATE, f"--workdir={uninterrupted}", f"--output={output}"])
        results = json.loads((uninterrupted / "results.json").read_text())
        for name, value in json.loads(output.read_text()).items():
            assert value == pytest.approx(results[name], rel=1e-6), name

    def test_the_evaluate_command_takes_other_text(self, uninterrupted, tmp_path):
        for i in range(3):
            text = "The quick brown fox jumps over the lazy dog. It was a good day. " * 20
            (tmp_path / f"{i}.txt").write_text(f"{text}\n\nAnother paragraph of number {i}.")
        before = sorted(str(p) for p in uninterrupted.rglob("*"))
        output = tmp_path / "out.json"
        command = [*EVALUATE, f"--workdir={uninterrupted}", f"--data={tmp_path}/*.txt"]
        runs.succeed([*command, f"--output={output}"])
        results = json.loads(output.read_text())
        assert set(results) == set(
            "step mlm_loss mlm_accuracy mlm_perplexity nsp_loss nsp_accuracy unigram_mlm_loss "
            "unigram_mlm_accuracy unigram_mlm_perplexity majority_nsp_accuracy "
            "num_sequences".split()
        )
        assert 0 < results["num_sequences"] <= 32
        assert sorted(str(p) for p in uninterrupted.rglob("*")) == before


class TestInterruptedRun:
    def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(
        self, uninterrupted, store, tmp_path
    ):
        command = runs.main_command(tmp_path, data__store=store)
        moments = random.Random(17)
        killed_at = []
        while len(killed_at) < 3:
            process = start(command)
            goal = newest_checkpoint(tmp_path) + moments.choice([4, 4, 8])
            wait_for(lambda goal=goal: newest_checkpoint(tmp_path) >= goal, process)
            # Between steps or in the middle of a save.
            time.sleep(moments.uniform(0.0, 0.5))
            if process.poll() is not None:
                pytest.fail("finished before it was killed three times: " + process.stdout.read())
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed_at.append(newest_checkpoint(tmp_path))
        runs.succeed(command)
        assert_same_bits(final_state(tmp_path), final_state(uninterrupted))
        ours, theirs = (
            [{name: line[name] for name in TIMELESS} for line in training_lines(directory)]
            for directory in (tmp_path, uninterrupted)
        )
        assert ours == theirs, f"killed at {killed_at}"

    def test_sigterm_saves_and_ends_the_process(self, uninterrupted, store, tmp_path):
        command = runs.main_command(tmp_path, data__store=store, checkpoint__every_steps=1000)
        process = start(command)
        metrics = tmp_path / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and len(read_metrics(tmp_path)) >= 2, process)
        process.send_signal(signal.SIGTERM)
        logged = read_metrics(tmp_path)[-1]["step"]
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        assert "Stopped by SIGTERM" in output and "run the same command to continue" in output
        saved = newest_checkpoint(tmp_path)
        assert logged <= saved < 60
        assert f"continuing from step {saved} in {tmp_path}" in runs.succeed(command)
        assert_same_bits(final_state(tmp_path), final_state(uninterrupted))

    def test_a_signal_ends_the_run_after_the_step_it_comes_in(
        self, uninterrupted, tmp_path, monkeypatch
    ):
        config = workdir.load_config(uninterrupted)
        dispatched = Recorder.dispatched

        def signalled(recorder, step, *args, **kwargs):
            dispatched(recorder, step, *args, **kwargs)
            if step == 7:
                os.kill(os.getpid(), signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(Recorder, "dispatched", signalled)
            assert train.train(config, tmp_path) is None
        assert newest_checkpoint(tmp_path) == 7

        # More steps are allowed while the stages of the steps already taken stay as they are.
        config.train.num_steps = 8
        with pytest.raises(UserError, match=r"config\.train\.num_steps is 8.*another place"):
            train.train(config, tmp_path)
        config.train.num_steps = 80
        assert train.train(config, tmp_path)["step"] == 80
        config.train.num_steps = 100
        with pytest.raises(UserError, match=r"config\.train\.num_steps is 100.*another place"):
            train.train(config, tmp_path)

    def test_a_truncated_newest_checkpoint_is_skipped(self, uninterrupted, store, tmp_path):
        directory = tmp_path / "copy"
        shutil.copytree(uninterrupted, directory)
        (directory / "results.json").unlink()
        largest = max((directory / "checkpoints" / "60").rglob("*"), key=lambda p: p.stat().st_size)
        largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
        finished = runs.run(runs.main_command(directory, data__store=store))
        assert finished.returncode == 0, finished.stderr
        assert finished.stderr.count("is damaged") == 1
        assert "Traceback" not in finished.stderr
        assert "continuing from step 56" in finished.stdout
        assert_same_bits(final_state(directory), final_state(uninterrupted))


class TestRefusals:
    """Each mistake with a work directory ends in one clear sentence."""

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("model.vocab_size", 700, "--config.model.vocab_size=600"),
            (
                "train.gradient_accumulation_steps",
                3,
                r"config\.train\.batch_size is 8.*nearest.*9",
            ),
            ("data.store", "/nowhere/mistyped", "mistyped.*bert_jax.prepare"),
            ("data.lowercase", False, "--config.data.lowercase=True"),
        ],
    )
    def test_values(self, uninterrupted, tmp_path, key, value, message):
        config = workdir.load_config(uninterrupted)
        config.update_from_flattened_dict({key: value})
        with pytest.raises(UserError, match=message):
            train.train(config, tmp_path / "run")

    def test_another_models_directory(self, uninterrupted):
        config = workdir.load_config(uninterrupted)
        config.model.num_hidden_layers = 3
        with pytest.raises(UserError, match=r"config\.model\.num_hidden_layers is 2, not 3"):
            train.train(config, uninterrupted)

    def test_work_directory_in_other_storage(self, uninterrupted):
        with pytest.raises(UserError, match="--workdir is s3://bucket/run, but s3:// paths"):
            train.train(workdir.load_config(uninterrupted), "s3://bucket/run")

    def test_work_directory_under_a_file(self, store, tmp_path):
        (tmp_path / "file").write_text("")
        finished = runs.run(runs.main_command(tmp_path / "file" / "run", data__store=store))
        assert finished.returncode == 1
        assert finished.stderr.startswith("error: ") and "Traceback" not in finished.stderr
        assert str(tmp_path / "file") in finished.stderr

    def test_non_finite_loss(self, uninterrupted, tmp_path):
        config = workdir.load_config(uninterrupted)
        config.schedule.peak_learning_rate, config.optimizer.max_grad_norm = 1e30, 0.0
        with pytest.raises(UserError, match="is not finite .*peak_learning_rate"):
            train.train(config, tmp_path)
        report = json.loads(next(tmp_path.glob("non_finite_step_*.json")).read_text())
        assert report["step"] > 1
        assert len(report["batch"]["rows"]) == 8
        saved = report["last_good_checkpoint"] or 0
        assert newest_checkpoint(tmp_path) == saved < report["step"]
        if saved:
            for leaf in jax.tree.leaves(final_state(tmp_path).params):
                assert np.isfinite(leaf).all()


@pytest.mark.slow
def test_the_front_door_learns(tmp_path):
    """README's command beats what a model without context reaches."""
    command = [sys.executable, "-m", "bert_jax.main", "--config=configs/tiny.py"]
    runs.succeed([*command, f"--workdir={tmp_path}"], timeout=1800)
    results = json.loads((tmp_path / "results.json").read_text())
    # The margin that configs/tiny.py states.
    assert results["mlm_loss"] < results["unigram_mlm_loss"] - 0.8
    assert results["mlm_accuracy"] > results["unigram_mlm_accuracy"] + 0.05
