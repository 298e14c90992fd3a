"""Whole runs, in real processes: learning, resuming, being killed, being stopped."""

import json
import os
import random
import shutil
import signal
import subprocess
import time

import jax
import numpy as np
import pytest

from bert_jax import config as config_lib
from bert_jax import prepare, train, workdir
from bert_jax.errors import UserError
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import read_metrics
from bert_jax.training.recorder import Recorder
from bert_jax.training.trainer import Trainer
from tests import runs

LOGGED = (
    "step loss mlm_loss nsp_loss mlm_accuracy nsp_accuracy learning_rate grad_norm "
    "sequences_per_second tokens_per_second mfu"
).split()


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
    """The work directory of a run that nothing disturbed, and what it printed."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    finished = runs.run(runs.main_command(directory, data__store=store))
    assert finished.returncode == 0, finished.stderr
    return directory, finished


def final_state(directory):
    """The state of a work directory's newest checkpoint, as numpy arrays."""
    config = workdir.load_config(directory)
    checkpointer = Checkpointer(directory / workdir.CHECKPOINTS, read_only=True)
    state, _ = checkpointer.restore_newest(Trainer.from_config(config).abstract_state())
    checkpointer.close()
    return jax.tree.map(np.asarray, state)


def assert_same_bits(ours, theirs):
    for (path, one), other in zip(
        jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True
    ):
        assert one.tobytes() == other.tobytes(), jax.tree_util.keystr(path)


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for too long"
        if process.poll() is not None:
            return
        time.sleep(0.02)


def start(command):
    return subprocess.Popen(
        command,
        cwd=runs.ROOT,
        env=runs.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def newest_checkpoint(directory) -> int:
    steps = [int(p.name) for p in (directory / "checkpoints").glob("*") if p.name.isdigit()]
    return max(steps, default=0)


class TestUninterruptedRun:
    def test_says_what_a_person_wants_to_know(self, uninterrupted):
        directory, finished = uninterrupted
        for expected in (
            "bert/encoder/layer_*/attention/query_kernel",
            "bytes a device",
            "held-out documents",
            "baseline",
            "masked-LM loss",
            "next-sentence accuracy",
            "sequences/s",
            str(directory / "checkpoints" / "60"),
            str(directory / "curves.png"),
            "python -m bert_jax.evaluate",
        ):
            assert expected in finished.stdout, expected
        assert "\x1b" not in finished.stdout, "no control characters where there is no terminal"
        assert "Traceback" not in finished.stderr

    def test_leaves_the_promised_files(self, uninterrupted):
        directory, _ = uninterrupted
        assert json.loads((directory / "config.json").read_text())["train"]["num_steps"] == 60
        assert (directory / "tokenizer" / "vocab.txt").exists()
        assert (directory / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert list((directory / "tensorboard").glob("events.out.tfevents.*"))
        assert newest_checkpoint(directory) == 60

    def test_metrics_have_the_fixed_names(self, uninterrupted):
        lines = read_metrics(uninterrupted[0])
        training = [line for line in lines if "loss" in line]
        assert [line["step"] for line in training] == list(range(5, 61, 5))
        for line in training:
            assert set(LOGGED) <= set(line)
            assert line["loss"] == pytest.approx(line["mlm_loss"] + line["nsp_loss"], rel=1e-5)
            assert line["mfu"] is None, "no peak is known for a CPU"
        assert [line["step"] for line in lines if "eval_mlm_loss" in line] == [20, 40, 60]

    def test_switches_stages_by_itself(self, uninterrupted):
        lengths = {
            line["step"]: line["seq_length"]
            for line in read_metrics(uninterrupted[0])
            if "loss" in line
        }
        assert lengths[40] == 24 and lengths[45] == 48

    def test_learns(self, uninterrupted):
        training = [line["mlm_loss"] for line in read_metrics(uninterrupted[0]) if "loss" in line]
        assert training[-1] < training[0] - 0.5

    def test_a_second_start_says_that_it_is_finished(self, uninterrupted, store):
        directory, _ = uninterrupted
        before = (directory / "metrics.jsonl").read_bytes()
        again = runs.run(runs.main_command(directory, data__store=store))
        assert again.returncode == 0
        assert "finished" in again.stdout and "masked-LM loss" in again.stdout
        assert (directory / "metrics.jsonl").read_bytes() == before

    def test_evaluation_is_the_same_every_time(self, uninterrupted, tmp_path):
        directory, _ = uninterrupted
        outputs = []
        for name in ("one.json", "two.json"):
            command = [runs.sys.executable, "-m", "bert_jax.evaluate", f"--workdir={directory}"]
            finished = runs.run([*command, f"--output={tmp_path / name}"])
            assert finished.returncode == 0, finished.stderr
            outputs.append(json.loads((tmp_path / name).read_text()))
        assert outputs[0] == outputs[1]
        results = json.loads((directory / "results.json").read_text())
        for name in outputs[0]:
            assert outputs[0][name] == pytest.approx(results[name], rel=1e-6), name

    def test_evaluates_text_it_never_saw(self, uninterrupted, tmp_path):
        directory, _ = uninterrupted
        for i in range(3):
            text = "The quick brown fox jumps over the lazy dog. It was a good day. " * 20
            (tmp_path / f"{i}.txt").write_text(f"{text}\n\nAnother paragraph of number {i}.")
        before = sorted(str(p) for p in directory.rglob("*"))
        command = [runs.sys.executable, "-m", "bert_jax.evaluate", f"--workdir={directory}"]
        output = tmp_path / "out.json"
        finished = runs.run([*command, f"--data={tmp_path}/*.txt", f"--output={output}"])
        assert finished.returncode == 0, finished.stderr
        results = json.loads(output.read_text())
        assert set(results) == set(
            "step mlm_loss mlm_accuracy mlm_perplexity nsp_loss nsp_accuracy unigram_mlm_loss "
            "unigram_mlm_accuracy majority_nsp_accuracy num_sequences".split()
        )
        assert 0 < results["num_sequences"] <= 32
        assert sorted(str(p) for p in directory.rglob("*")) == before


class TestInterruptedRun:
    def test_killed_again_and_again_it_ends_with_the_same_bits(
        self, uninterrupted, store, tmp_path
    ):
        command = runs.main_command(tmp_path, data__store=store)
        moments = random.Random(17)
        killed_at = []
        while len(killed_at) < 5:
            process = start(command)
            before = newest_checkpoint(tmp_path)
            goal = before + moments.choice([0, 4, 4, 8])
            wait_for(lambda goal=goal: newest_checkpoint(tmp_path) >= goal, process)
            # Anywhere: while loading, between steps, in the middle of a save.
            time.sleep(moments.uniform(0.0, 0.5))
            if process.poll() is not None:
                pytest.fail("finished before it was killed five times: " + process.stdout.read())
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed_at.append(newest_checkpoint(tmp_path))
        finished = runs.run(command)
        assert finished.returncode == 0, finished.stderr
        assert_same_bits(final_state(tmp_path), final_state(uninterrupted[0]))

        timeless = [name for name in LOGGED if "per_second" not in name and name != "mfu"]
        ours, theirs = (
            [{k: line[k] for k in timeless} for line in read_metrics(d) if "loss" in line]
            for d in (tmp_path, uninterrupted[0])
        )
        assert ours == theirs, f"killed at {killed_at}"

    def test_sigterm_saves_and_leaves_within_a_step(self, uninterrupted, store, tmp_path):
        command = runs.main_command(tmp_path, data__store=store, checkpoint__every_steps=1000)
        process = start(command)
        metrics = tmp_path / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and len(read_metrics(tmp_path)) >= 2, process)
        process.send_signal(signal.SIGTERM)
        logged = read_metrics(tmp_path)[-1]["step"]
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        assert "SIGTERM" in output and "the same command" in output
        saved = newest_checkpoint(tmp_path)
        # A step may have been under way and another dispatched when the signal came.
        assert logged <= saved < 60
        finished = runs.run(command)
        assert finished.returncode == 0, finished.stderr
        assert f"going on from step {saved}" in finished.stdout
        assert_same_bits(final_state(tmp_path), final_state(uninterrupted[0]))

    def test_the_signal_is_heeded_within_the_step_it_comes_in(
        self, uninterrupted, store, tmp_path, monkeypatch
    ):
        config = workdir.load_config(uninterrupted[0])
        dispatched = Recorder.dispatched

        def signalled(recorder, step, stage, metrics):
            dispatched(recorder, step, stage, metrics)
            if step == 7:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(Recorder, "dispatched", signalled)
        assert train.train(config, tmp_path) is None
        assert newest_checkpoint(tmp_path) == 7

    @pytest.mark.slow
    def test_more_steps_are_allowed_only_where_nothing_is_read_twice(
        self, uninterrupted, store, tmp_path
    ):
        short = runs.main_command(tmp_path, data__store=store)
        process = start(short)
        wait_for(lambda: newest_checkpoint(tmp_path) >= 8, process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert newest_checkpoint(tmp_path) < 42, "still in the first stage"
        config = workdir.load_config(tmp_path)
        config.train.num_steps = 80
        train.train(config, tmp_path)
        straight = tmp_path / "straight"
        train.train(config, straight)
        assert newest_checkpoint(tmp_path) == newest_checkpoint(straight) == 80

        config.train.num_steps = 100
        with pytest.raises(UserError, match=r"config\.train\.num_steps is 100.*another place"):
            train.train(config, tmp_path)

    def test_truncated_newest_checkpoint_is_skipped(self, uninterrupted, store, tmp_path):
        directory = tmp_path / "copy"
        shutil.copytree(uninterrupted[0], directory)
        (directory / "results.json").unlink()
        largest = max((directory / "checkpoints" / "60").rglob("*"), key=lambda p: p.stat().st_size)
        largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
        finished = runs.run(runs.main_command(directory, data__store=store))
        assert finished.returncode == 0, finished.stderr
        assert finished.stderr.count("is damaged") == 1
        assert "Traceback" not in finished.stderr
        assert "going on from step 56" in finished.stdout
        assert_same_bits(final_state(directory), final_state(uninterrupted[0]))


class TestRefusals:
    """What a user can do wrong with a work directory; each one clear sentence."""

    def load(self, uninterrupted, **changes):
        config = workdir.load_config(uninterrupted[0])
        for key, value in changes.items():
            section, _, name = key.partition("__")
            setattr(getattr(config, section), name, value)
        return config

    def test_another_models_directory(self, uninterrupted):
        config = self.load(uninterrupted, model__num_hidden_layers=3)
        with pytest.raises(UserError, match=r"config\.model\.num_hidden_layers is 2, not 3"):
            train.train(config, uninterrupted[0])

    def test_another_vocabulary_size(self, uninterrupted, tmp_path):
        config = self.load(uninterrupted, model__vocab_size=700)
        with pytest.raises(UserError, match="--config.model.vocab_size=600"):
            train.train(config, tmp_path)

    def test_batch_that_does_not_divide(self, uninterrupted, tmp_path):
        config = self.load(uninterrupted, train__gradient_accumulation_steps=3)
        with pytest.raises(UserError, match=r"config\.train\.batch_size is 8.*nearest.*9"):
            train.train(config, tmp_path)

    def test_a_store_that_is_not_there(self, uninterrupted, tmp_path):
        config = self.load(uninterrupted, data__store=str(tmp_path / "mistyped"))
        with pytest.raises(UserError, match="mistyped.*bert_jax.prepare"):
            train.train(config, tmp_path / "run")
        assert not (tmp_path / "mistyped").exists()

    def test_a_store_of_another_kind(self, uninterrupted, tmp_path):
        config = self.load(uninterrupted, data__lowercase=False)
        with pytest.raises(UserError, match="--config.data.lowercase=True"):
            train.train(config, tmp_path)

    def test_work_directory_in_other_storage(self, uninterrupted):
        with pytest.raises(UserError, match="--workdir is s3://bucket/run, but s3:// paths"):
            train.train(self.load(uninterrupted), "s3://bucket/run")

    def test_work_directory_under_a_file(self, uninterrupted, store, tmp_path):
        (tmp_path / "file").write_text("")
        command = runs.main_command(tmp_path / "file" / "run", data__store=store)
        finished = runs.run(command)
        assert finished.returncode == 1
        assert finished.stderr.startswith("error: ") and "Traceback" not in finished.stderr
        assert str(tmp_path / "file") in finished.stderr

    def test_non_finite_loss(self, uninterrupted, store, tmp_path):
        command = runs.main_command(
            tmp_path,
            data__store=store,
            schedule__peak_learning_rate=1e30,
            optimizer__max_grad_norm=0.0,
        )
        finished = runs.run(command)
        assert finished.returncode == 1
        assert "Traceback" not in finished.stderr
        assert "not finite" in finished.stderr and "peak_learning_rate" in finished.stderr
        report = json.loads(next(tmp_path.glob("non_finite_step_*.json")).read_text())
        assert report["step"] > 1
        assert len(report["batch"]["rows"]) == 8
        saved = report["last_good_checkpoint"] or 0
        assert saved < report["step"]
        if saved:
            for leaf in jax.tree.leaves(final_state(tmp_path).params):
                assert np.isfinite(leaf).all()


@pytest.mark.slow
def test_the_front_door_learns(tmp_path):
    """README's command, to its end: the model must beat what knows no context."""
    command = [runs.sys.executable, "-m", "bert_jax.main", "--config=configs/tiny.py"]
    finished = runs.run([*command, f"--workdir={tmp_path}"], timeout=1800)
    assert finished.returncode == 0, finished.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    # The margin that configs/tiny.py states.
    assert results["mlm_loss"] < results["unigram_mlm_loss"] - 0.8
    assert results["mlm_accuracy"] > results["unigram_mlm_accuracy"] + 0.05


def test_config_of_a_run_reads_back(uninterrupted):
    config = workdir.load_config(uninterrupted[0])
    config_lib.validate(config)
    stored = json.loads((uninterrupted[0] / "config.json").read_text())
    assert config_lib.to_dict(config) == stored
