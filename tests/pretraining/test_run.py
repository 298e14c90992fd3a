"""Whole runs: they learn, and are bit-identical after kills, damage and signals."""

import contextlib
import io
import json
import shutil
import signal
import sys

import numpy as np
import pytest

from bert_jax import config as config_lib
from bert_jax import prepare
from bert_jax.base.errors import UserError
from bert_jax.commands.complete_config import complete_config
from bert_jax.commands.pretrain import pretrain
from bert_jax.config.command_line import ConfigSource
from bert_jax.training import workdir
from bert_jax.training.loop import DivergedError
from bert_jax.training.metrics import read_metrics
from bert_jax.training.trainer import Trainer
from tests import runs
from tests.runs import assert_same_bits, damage, final_state, newest_checkpoint, start, wait_for
from tests.small_run import after_step, small_run

TIMELESS = "step loss mlm_loss nsp_loss mlm_accuracy nsp_accuracy learning_rate grad_norm".split()
LOGGED = {*TIMELESS, "sequences_per_second", "tokens_per_second", "mfu"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Returns a token store of the first parts of State of the Union addresses."""
    directory = tmp_path_factory.mktemp("store") / "store"
    data = config_lib.default_config().data
    data.input = (runs.write_speeches(tmp_path_factory.mktemp("texts")),)
    data.num_processes, data.heldout_fraction = 1, 0.2
    prepare.prepare(data, runs.TINY_RUN["model.vocab_size"], directory)
    return directory


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, store):
    """Returns the work directory of an uninterrupted run."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        pretrain(runs.tiny_run(data__store=str(store)), directory)
    (directory / "output.txt").write_text(output.getvalue())
    return directory


def training_lines(directory):
    return [line for line in read_metrics(directory) if "loss" in line]


class TestUninterruptedRun:
    def test_output_of_the_command(self, uninterrupted):
        output = (uninterrupted / "output.txt").read_text()
        for expected in (
            "masked LM + next sentence: ",
            "steps 1 to 42: 8 sequences of 24 tokens per step",
            f"starting in {uninterrupted}; its config.json has all values",
            "step 20: held out: masked-LM loss ",
            "next-sentence accuracy",
            "sequences/s",
            str(uninterrupted / "checkpoints" / "60"),
            f"python -m bert_jax.predict --model={uninterrupted} fill-mask 'It is [MASK].'",
            "python -m bert_jax.evaluate",
            "python -m bert_jax.finetune",
        ):
            assert expected in output, expected
        assert "config.model" not in output, "config.json has the values that the file gives"
        assert "tokens seen in an epoch" in output and "rows in an epoch" not in output
        assert "bytes per device" not in output, "one device needs no table"
        assert "\x1b" not in output, "no control characters where there is no terminal"

    def test_writes_the_documented_files(self, uninterrupted):
        stored = json.loads((uninterrupted / "config.json").read_text())
        config = workdir.load_config(uninterrupted)
        config_lib.validate(config)
        assert config_lib.to_dict(config) == stored and stored["train"]["num_steps"] == 60
        # The text is that of the given store, not the default.
        (data_input,) = stored["data"]["input"]
        assert data_input.endswith("/*.txt")
        assert (uninterrupted / "tokenizer" / "vocab.txt").exists()
        assert (uninterrupted / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert list((uninterrupted / "tensorboard").glob("events.out.tfevents.*"))
        assert newest_checkpoint(uninterrupted) == 60

    def test_metrics_have_fixed_names_and_improve(self, uninterrupted):
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

    def test_a_finished_run_of_others_opens_only_its_directory(
        self, uninterrupted, tmp_path, capsys
    ):
        directory = tmp_path / "run"
        shutil.copytree(uninterrupted, directory)
        config = workdir.load_config(directory)
        config.data.store = "gs://bucket-of-others/store"
        source = ConfigSource("config.json", config, is_stored=True)
        results = pretrain(config, directory, source)
        assert results == json.loads((uninterrupted / "results.json").read_text())
        assert "This run is finished" in capsys.readouterr().out

    def test_evaluate_command_gives_the_same_results(self, uninterrupted, tmp_path):
        output = tmp_path / "new" / "out.json"
        command = [sys.executable, "-m", "bert_jax.evaluate", f"--workdir={uninterrupted}"]
        runs.succeed([*command, f"--output={output}"])
        results = json.loads((uninterrupted / "results.json").read_text())
        found = json.loads(output.read_text())
        ours, theirs = (
            [mask["guess"] for text in x.pop("filled_texts") for mask in text["masks"]]
            for x in (found, results)
        )
        assert ours == theirs and ours
        for name, value in found.items():
            assert value == pytest.approx(results[name], rel=1e-6), name


def test_killed_damaged_and_stopped_run_is_bit_identical(
    uninterrupted, store, tmp_path, capsys, caplog
):
    process = start(runs.main_command(tmp_path, data__store=store))
    wait_for(lambda: newest_checkpoint(tmp_path) >= 20, process)
    process.kill()
    process.communicate()
    newest = newest_checkpoint(tmp_path)
    assert 20 <= newest < 60
    damage(tmp_path, newest)

    config = workdir.load_config(uninterrupted)
    stop = newest - 1
    with after_step(stop, lambda: signal.raise_signal(signal.SIGTERM)):
        assert pretrain(config, tmp_path) is None
    assert caplog.text.count("is damaged") == 1
    output = capsys.readouterr().out
    assert f"continuing from step {newest - 10} in {tmp_path}" in output
    assert "Stopped by SIGTERM" in output and "run the same command to continue" in output
    assert newest_checkpoint(tmp_path) == stop

    pretrain(config, tmp_path)
    assert_same_bits(final_state(tmp_path), final_state(uninterrupted))
    ours, theirs = (
        [{name: line[name] for name in TIMELESS} for line in training_lines(directory)]
        for directory in (tmp_path, uninterrupted)
    )
    assert ours == theirs

    # A process may also be killed between the last checkpoint and the results.
    (tmp_path / "results.json").unlink()
    assert pretrain(config, tmp_path)
    evaluated = [x["step"] for x in read_metrics(tmp_path) if "eval_mlm_loss" in x]
    assert evaluated == [20, 40, 60]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.vocab_size", 700, "--config.model.vocab_size=600"),
        ("data.store", "/nowhere/mistyped", "mistyped.*bert_jax.prepare"),
        ("data.input", ("/nowhere/*.txt",), "config.data.input is .'/nowhere/.*.txt'., but the"),
        ("data.vocab", "/nowhere/vocab.txt", "config.data.vocab: .*/nowhere/vocab.txt"),
    ],
)
def test_flags_that_contradict_the_store_are_refused(uninterrupted, tmp_path, key, value, message):
    config = workdir.load_config(uninterrupted)
    config.update_from_flattened_dict({key: value})
    with pytest.raises(UserError, match=message):
        pretrain(config, tmp_path / "run", ConfigSource("x.py", config, frozenset({key})))


def test_the_input_of_a_store_may_move(store, tmp_path):
    def completed(*flags, **changes):
        config = runs.tiny_run(data__store=str(store), **changes)
        source = ConfigSource("x.py", config, frozenset(flags))
        return complete_config(config, tmp_path, source)[0]

    made_from = completed().data.input
    folder, pattern = made_from[0].rsplit("/", 1)
    shutil.copytree(folder, tmp_path / "moved")
    moved = {"data__input": (f"{tmp_path}/moved/{pattern}",)}
    assert completed("data.input", **moved).data.input == moved["data__input"]
    next((tmp_path / "moved").iterdir()).write_text("Other text.")
    with pytest.raises(UserError, match="moved.*, but the token store .* was made with"):
        completed("data.input", **moved)
    assert completed(**moved).data.input == made_from


def test_non_finite_loss_ends_the_run(uninterrupted, tmp_path, monkeypatch):
    train_step = Trainer.train_step

    def broken(trainer, state, batch):
        state, metrics = train_step(trainer, state, batch)
        return state, metrics | ({"loss": np.nan} if int(state.step) == 6 else {})

    monkeypatch.setattr(Trainer, "train_step", broken)
    config = workdir.load_config(uninterrupted)
    config.checkpoint.every_steps = 4
    with pytest.raises(
        UserError, match="step 6 is not finite .* is of step 4; .*peak_learning_rate"
    ):
        pretrain(config, tmp_path)


@pytest.mark.parametrize(
    ("decay", "rate", "steps", "message"),
    [
        (1e38, 1e6, 2, r"or update of step 2 is not finite \(loss [\d.]+, gradient norm [\d.]+,"),
        pytest.param(*(1e10, 1e-3, 4, "mlm_loss on held-out text is nan"), marks=pytest.mark.slow),
    ],
)
def test_the_last_update_is_checked(texts, tmp_path, decay, rate, steps, message):
    """It makes the weights infinite, or so large that the model's outputs are NaN."""
    config = small_run(
        texts,
        optimizer__weight_decay=decay,
        schedule__peak_learning_rate=rate,
        schedule__warmup_steps=100.0,
        train__num_steps=steps,
    )
    with pytest.raises(DivergedError, match=message):
        pretrain(config, tmp_path / "run")
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.slow
def test_readme_command_beats_the_baseline(tmp_path):
    """The README's run must beat the unigram baseline."""
    command = [sys.executable, "-m", "bert_jax.main", "--config=configs/tiny.py"]
    runs.succeed([*command, f"--workdir={tmp_path}"], timeout=1800, **runs.OPTIMIZED)
    results = json.loads((tmp_path / "results.json").read_text())
    # This margin is documented in configs/tiny.py.
    assert results["mlm_loss"] < results["unigram_mlm_loss"] - 0.8
    assert results["mlm_accuracy"] > results["unigram_mlm_accuracy"] + 0.05
