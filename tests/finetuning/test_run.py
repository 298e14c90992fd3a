"""Whole runs of fine-tuning: learning, kills and stops, and refusals of other data."""

import contextlib
import io
import json
import random
import re
import shutil
import signal
import time
from contextlib import closing

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax import config as config_lib
from bert_jax.base.errors import UserError
from bert_jax.commands.evaluate import evaluate_workdir
from bert_jax.commands.finetune import finetune, open_task_setup
from bert_jax.commands.score_file import score_file
from bert_jax.config.command_line import ConfigSource
from bert_jax.finetuning import build, run
from bert_jax.interop import formats
from bert_jax.tokenizers.protein import ESM_TOKENS, ProteinTokenizer
from bert_jax.tokenizers.special_tokens import CONVENTIONS
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import read_metrics
from tests import runs
from tests.finetuning import small
from tests.interop.small_bert import make_pretrained
from tests.runs import assert_same_bits, newest_checkpoint, wait_for
from tests.runs import start as start_process

STEPS = 80


def slow(command):
    """Returns the command with slow steps, so that a signal arrives during one."""
    return [*command[:2], "tests.finetuning.slow_steps", *command[3:]]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, bert, data):
    """Returns the work directory of an uninterrupted run."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        source = ConfigSource("table", config_lib.finetune_config("table"))
        finetune(small.config(bert, data, eval__predict="test"), directory, source=source)
    (directory / "output.txt").write_text(output.getvalue())
    return directory


@pytest.mark.parametrize("case", [str.lower, str.upper])
def test_unknown_letters_of_proteins_have_their_own_remedy(tmp_path, case):
    pretrained = make_pretrained(family="esm", num_hidden_layers=1, vocab_size=len(ESM_TOKENS))
    pretrained.tokenizer = ProteinTokenizer(ESM_TOKENS, special_tokens=CONVENTIONS["esm"])
    formats.write(pretrained, tmp_path / "esm", "huggingface")
    rows = "".join(f"{case('MKTAYIAK')}\t{label}\n" for label in "xy" * 10)
    (tmp_path / "train.tsv").write_text(f"text\tlabel\n{rows}")
    given = small.config(tmp_path / "esm", tmp_path / "train.tsv")
    found = run.make_run(given, tmp_path / "run", open_task_setup(given)).warnings
    words = [text for text in found if text.endswith("write proteins in upper case")]
    assert len(words) == len(found) == (case is str.lower)


def results(directory):
    return json.loads((directory / "results.json").read_text())


def final_state(directory):
    """Returns the state of the newest checkpoint and the best parameters, as numpy arrays."""
    config = workdir.load_config(directory)
    setup = open_task_setup(config_of(directory), directory)
    stage = build.make_stage(config, setup.task.rows("train"))
    trainer = build.make_trainer(config, stage)
    with closing(Checkpointer(directory / workdir.CHECKPOINTS, read_only=True)) as checkpoints:
        state, _ = checkpoints.restore_newest(trainer.abstract_state())
    best = formats.read(directory)
    return jax.tree.map(np.asarray, state), best.weights


def config_of(directory):
    """Returns the user's config of a run."""
    config = workdir.load_config(directory)
    with config.unlocked():
        del config["head"], config["labels"]
    return config


def same_end(one, other):
    """Compares states and best weights bit for bit, and all numbers except timings."""
    for ours, theirs in zip(final_state(one), final_state(other), strict=True):
        assert_same_bits(ours, theirs)
    ours, theirs = results(one), results(other)
    for values in (ours, theirs):
        del values["train_sequences_per_second"], values["compile_seconds"]
    assert ours == theirs
    ours, theirs = (
        [{k: v for k, v in line.items() if "second" not in k} for line in read_metrics(d)]
        for d in (one, other)
    )
    assert ours == theirs


class TestUninterruptedRun:
    def test_dtype_is_that_of_the_run_or_fits_the_device(
        self, uninterrupted, bert, data, tmp_path, monkeypatch
    ):
        given = small.config(bert, data, dtype="auto")
        setup = open_task_setup(given)
        assert run.make_run(given, tmp_path, setup).config.dtype == "float32"
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        assert run.make_run(given, tmp_path, setup).config.dtype == "bfloat16"
        assert run.make_run(given, uninterrupted, setup).config.dtype == "float32"

    def test_learns_and_keeps_the_best_of_the_epochs(self, uninterrupted):
        lines = read_metrics(uninterrupted)
        losses = [line["loss"] for line in lines if "loss" in line]
        assert losses[-1] < losses[0] / 2
        scores = {x["step"]: x["eval_accuracy"] for x in lines if "eval_accuracy" in x}
        assert list(scores) == [20, 40, 60, 80]
        found = results(uninterrupted)
        assert found["score"] == max(scores.values()) == scores[found["best_step"]] > 0.9

    def test_leaves_the_promised_files(self, uninterrupted, data):
        stored = json.loads((uninterrupted / "config.json").read_text())
        assert config_lib.to_dict(workdir.load_config(uninterrupted)) == stored
        assert stored["labels"] == ["no", "yes"] and stored["head"] == "sequence_classification"
        assert stored["model"]["hidden_size"] == 24, "as in the weights"
        assert (uninterrupted / "tokenizer" / "vocab.txt").exists()
        assert list((uninterrupted / "tensorboard").glob("events.out.tfevents.*"))
        assert (uninterrupted / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert newest_checkpoint(uninterrupted) == STEPS
        best = [int(path.name) for path in (uninterrupted / "best").iterdir()]
        assert max(best) == results(uninterrupted)["best_step"] and len(best) <= 2
        output = (uninterrupted / "output.txt").read_text()
        for expected in ("2 labels", "160 train", "accuracy", "bert_jax.convert"):
            assert expected in output, expected
        assert re.search("python -m bert_jax.predict .* classify", output)
        (command,) = re.findall("python -m bert_jax.(evaluate .*)FILE", output)
        assert "accuracy: " in runs.succeed(runs.python(f"{command}{data}/validation.tsv"))

    def test_predicts_every_row_of_the_test_as_its_model_does(self, uninterrupted, data):
        lines = (uninterrupted / "predictions" / "test.csv").read_text().splitlines()
        assert lines[0] == "index,prediction,p(no),p(yes)" and len(lines) == 13
        rows = [line.split("\t") for line in (data / "test.tsv").read_text().splitlines()[1:]]
        right = [x.split(",")[1] == label for x, (_, label) in zip(lines[1:], rows, strict=True)]
        assert sum(right) >= 10
        assert results(uninterrupted)["test"]["accuracy"] == sum(right) / 12
        assert "test accuracy" in (uninterrupted / "report.html").read_text()
        found = dict(bert_jax.load(uninterrupted).classify(rows[0][0]))
        _, best, *probabilities = lines[1].split(",")
        assert next(iter(found)) == best
        expected = [float(probability) for probability in probabilities]
        np.testing.assert_allclose([found["no"], found["yes"]], expected, atol=1e-4)

    def test_scores_any_labeled_file(self, uninterrupted, data, tmp_path):
        found = score_file(uninterrupted, data / "validation.tsv")
        stored = results(uninterrupted)
        assert found["step"] == stored["best_step"] and found["num_rows"] == 48
        assert found["accuracy"] == stored["validation"]["accuracy"]
        last = score_file(uninterrupted, data / "validation.tsv", step=STEPS)
        lines = [line for line in read_metrics(uninterrupted) if "eval_accuracy" in line]
        assert last["accuracy"] == lines[-1]["eval_accuracy"]
        # A file with a single class has the labels of the run.
        (tmp_path / "one.csv").write_text("text,label\na b,no\n")
        assert score_file(uninterrupted, tmp_path / "one.csv")["num_rows"] == 1
        # No key of the config applies to this file.
        (tmp_path / "two.csv").write_bytes(b"text,label\na \xff,no\n")
        with pytest.raises(UserError, match=r"two.csv:2: not valid UTF-8$"):
            score_file(uninterrupted, tmp_path / "two.csv")

    @pytest.mark.parametrize("has_config", [True, False])
    def test_scores_an_export_as_the_run(self, uninterrupted, data, has_config, tmp_path):
        pretrained = formats.read(uninterrupted)
        if not has_config:
            # As from another program, whose labels often have no names.
            pretrained.training, pretrained.labels = {}, ("LABEL_0", "LABEL_1")
        formats.write(pretrained, tmp_path / "export", "huggingface")
        numbers = {"no": "no", "yes": "yes"} if has_config else {"no": "0", "yes": "1"}
        lines = (data / "validation.tsv").read_text().splitlines()[1:]
        rows = [line.split("\t") for line in lines]
        table = "".join(f"{text}\t{numbers[label]}\n" for text, label in rows)
        (tmp_path / "renamed.tsv").write_text("review\tmark\n" + table)
        columns = {"text_columns": ["review"], "label_column": "mark"}
        found = score_file(tmp_path / "export", tmp_path / "renamed.tsv", **columns)
        assert found["num_rows"] == 48 and "step" not in found
        assert found["accuracy"] == results(uninterrupted)["validation"]["accuracy"]
        for name in ("tokenizer.json", "vocab.txt"):
            (tmp_path / "export" / name).unlink()
        with pytest.raises(UserError, match="export has no tokenizer; python -m bert_jax.convert"):
            score_file(tmp_path / "export", tmp_path / "renamed.tsv", **columns)

    def test_a_second_start_reprints_the_results(self, uninterrupted, bert, data, capsys):
        before = (uninterrupted / "metrics.jsonl").read_bytes()
        found = bert_jax.finetune(small.config(bert, data, eval__predict="test"), uninterrupted)
        # The programs of a run do not stay in a process that makes many.
        assert not jax.local_devices()[0].client.live_executables()
        assert found == results(uninterrupted)
        output = capsys.readouterr().out
        assert "This run is finished: step 80 is done." in output and "accuracy" in output
        assert (uninterrupted / "metrics.jsonl").read_bytes() == before

    def test_reads_a_step_of_best_and_a_run_without_best(self, uninterrupted, tmp_path):
        best = results(uninterrupted)["best_step"]
        for name in ("checkpoints", "best"):
            directory = shutil.copytree(uninterrupted, tmp_path / name)
            shutil.rmtree(directory / name)
            (directory / name).mkdir()
        assert formats.read(tmp_path / "checkpoints", step=best).training["step"] == best
        assert formats.read(tmp_path / "best").training["step"] == STEPS
        with pytest.raises(UserError, match="/-1 does not exist"):
            formats.read(tmp_path / "best", step=-1)


class TestInterruptedRun:
    def test_killed_it_ends_with_the_same_bits(self, uninterrupted, bert, data, tmp_path, capsys):
        command = small.command(tmp_path, bert, data, eval__predict="test")
        process = start_process(slow(command))
        wait_for(lambda: newest_checkpoint(tmp_path) >= 20, process)
        # The signal may arrive between steps, during scoring, or during a save.
        time.sleep(random.Random(3).uniform(0.0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        killed_at = newest_checkpoint(tmp_path)
        assert 20 <= killed_at < STEPS

        finetune(small.config(bert, data, eval__predict="test"), tmp_path)
        assert f"continuing from step {killed_at}" in capsys.readouterr().out
        same_end(tmp_path, uninterrupted)

    @pytest.mark.slow
    def test_stopped_it_ends_with_the_same_bits(self, uninterrupted, bert, data, tmp_path):
        command = small.command(tmp_path, bert, data, eval__predict="test")
        # This run saves only when it receives the signal.
        values = {"eval__predict": "test", "checkpoint__every_steps": 1000}
        process = start_process(slow(small.command(tmp_path, bert, data, **values)))
        wait_for(lambda: len(read_metrics(tmp_path)) >= 2, process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        stopped_at = newest_checkpoint(tmp_path)
        assert 0 < stopped_at < STEPS and "Stopped by SIGTERM" in output
        assert f"continuing from step {stopped_at}" in runs.succeed(command)
        same_end(tmp_path, uninterrupted)

    @pytest.mark.slow
    def test_run_stopped_while_predicting_resumes(self, bert, data, tmp_path, monkeypatch):
        """The run returns None; the next start predicts the remaining splits."""
        config = small.config(bert, data, eval__predict="all", train__num_epochs=1.0)
        directory = tmp_path / "run"
        predict = run.predict

        def stopped(*args, **kwargs):
            if (directory / "predictions").exists():
                signal.raise_signal(signal.SIGTERM)
            return predict(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(run, "predict", stopped)
            assert finetune(config, directory) is None
            assert results(directory)["step"] == 20
            assert not list((directory / "predictions").iterdir())
            assert finetune(config, directory) is None
        assert finetune(config, directory) == results(directory)
        assert len(list((directory / "predictions").iterdir())) == 2

    @pytest.mark.slow
    def test_resumed_run_does_not_need_its_initial_weights(self, bert, data, tmp_path):
        weights = shutil.copytree(bert, tmp_path / "moved")
        config = small.config(weights, data, train__num_epochs=1.0, checkpoint__every_steps=10)
        assert finetune(config, tmp_path / "run")["step"] == 20
        shutil.rmtree(weights)
        (tmp_path / "run" / "results.json").unlink()
        shutil.rmtree(tmp_path / "run" / "checkpoints" / "20")
        assert finetune(config, tmp_path / "run")["step"] == 20


def test_several_labels_and_early_stop(bert, data, tmp_path, capsys):
    """With a rate of almost 0, no evaluation after the first is better."""
    rows = (data / "validation.tsv").read_text().replace("yes", "yes,odd")
    (tmp_path / "data").mkdir()
    for split in ("train", "validation"):
        (tmp_path / "data" / f"{split}.tsv").write_text(rows)
    config = small.config(
        bert,
        tmp_path / "data",
        table__multi_label=True,
        train__patience=2,
        eval__every_steps=3,
        schedule__peak_learning_rate=1e-30,
    )
    found = finetune(config, tmp_path / "run")
    assert (found["step"], found["best_step"], found["stopped_early"]) == (9, 3, True)
    assert [row["class"] for row in found["classes"]] == ["no", "odd", "yes"]
    assert found["classes"][1]["support"] == rows.count("odd")
    assert "micro_f1" in capsys.readouterr().out
    # A run that was killed before it wrote its results takes no further step.
    (tmp_path / "run" / "results.json").unlink()
    assert finetune(config, tmp_path / "run")["step"] == 9
    assert finetune(config, tmp_path / "run")["step"] == 9
    assert "This run is finished: step 9 is done." in capsys.readouterr().out
    assert formats.read(tmp_path / "run").multi_label


class TestRefusals:
    """Configs, data and commands that a work directory refuses."""

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ({"train__batch_size": 7}, "config.train.batch_size is 8, not 7"),
            ({"eval__every_steps": 7}, "config.eval.every_steps is 0, not 7"),
            ({"table__label_column": "text"}, "holds another run"),
        ],
    )
    def test_another_config(self, uninterrupted, bert, data, overrides, message):
        with pytest.raises(UserError, match=message):
            finetune(small.config(bert, data, **overrides), uninterrupted)

    @pytest.mark.parametrize("finished", [True, False])
    def test_other_data(self, uninterrupted, bert, tmp_path, data, finished):
        directory = shutil.copytree(uninterrupted, tmp_path / "run")
        if not finished:
            (directory / "results.json").unlink()
            shutil.rmtree(directory / "predictions")
        other = tmp_path / "data"
        small.write_rows(other, seed=5)
        config = (directory / "config.json").read_text()
        with pytest.raises(UserError, match="began with another corpus"):
            finetune(small.config(bert, other, eval__predict="test"), directory)
        assert (directory / "config.json").read_text() == config
        moved = shutil.copytree(data, tmp_path / "moved")
        assert finetune(small.config(bert, moved, eval__predict="test"), directory)["step"] == 80

    def test_evaluation_and_pretraining_are_refused(self, uninterrupted):
        with pytest.raises(UserError, match="fine-tuned.*results.json"):
            evaluate_workdir(uninterrupted)
        with pytest.raises(UserError, match="holds a run of fine-tuning; choose another"):
            bert_jax.train("tiny", uninterrupted)
