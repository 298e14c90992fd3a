"""Mistakes in flags and text give one clear sentence and a non-zero exit, and lose no data."""

import json
import os
import sys

import pytest

from bert_jax import config as config_lib
from bert_jax.commands import evaluate
from bert_jax.commands.pretrain import pretrain
from tests import runs
from tests.refusals import command
from tests.small_run import small_run, write_documents


def test_a_refused_run_leaves_no_directory(tmp_path):
    flags = "--config=configs/tiny.py", "--config.train.stages[0].fraction=0.5"
    message = command("main", *flags, f"--workdir={tmp_path}/run")
    assert "train.stages add up to 0.6, not to 1" in message
    assert not (tmp_path / "run").exists()


def test_a_single_document_is_enough(tmp_path):
    (tmp_path / "a.txt").write_text("One small file. It has three sentences. That is all.")
    results = pretrain(small_run(f"{tmp_path}/a.txt"), tmp_path / "run")
    assert results["step"] == 6 and results["nsp_loss"] > 0 and results["num_sequences"] > 0


def test_sentences_longer_than_rows_run_with_the_default_and_lose_little(tmp_path):
    long = " ".join(["the old man of the hill had seen it"] * 6)
    texts = write_documents(tmp_path / "texts", 12, text=f"{long.capitalize()}. " * 9)
    pretrain(small_run(texts), tmp_path / "run")
    (report,) = json.loads((tmp_path / "run" / "results.json").read_text())["corpus"]
    # Three quarters of the room of a row. Pairs lose some tokens, in each epoch others.
    assert report["seen"] > 0.9 and report["tokens_per_sentence"]["largest"] <= 9


class TestFewAndShortDocuments:
    """The smallest valid corpus: three documents, one of them with a single sentence."""

    @pytest.fixture(scope="class")
    def finished(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("few and short ü")
        data_input = write_documents(folder / "texts", 2)
        (folder / "texts" / "2.txt").write_text("This is the one sentence of this document.")
        directory = folder / "run"
        command = [sys.executable, "-m", "bert_jax.main", "--config=configs/tiny.py"]
        config = config_lib.to_dict(small_run(data_input))
        flags = {f"{s}.{k}": config[s][k] for s in ("model", "train") for k in config[s]}
        flags |= {"data.heldout_fraction": 0.0, "data.num_processes": 1, "data.input": data_input}
        del flags["train.stages"]
        flags |= {"train.stages[0].fraction": 1.0, "train.stages[1].fraction": 0.0}
        command += [f"--config.{key}={value}" for key, value in flags.items()]
        # A relative path that contains a space and an umlaut.
        return directory, runs.run([*command, f"--workdir={os.path.relpath(directory, runs.ROOT)}"])

    def test_trains_and_reports_that_nothing_was_held_out(self, finished):
        directory, process = finished
        assert process.returncode == 0, process.stderr
        assert "no document was held out" in process.stdout
        assert json.loads((directory / "results.json").read_text())["step"] == 6

    def test_evaluation_needs_text(self, finished, refusal):
        message = refusal(lambda: evaluate.evaluate_workdir(finished[0]))
        assert "held out no documents" in message and "--data=GLOB" in message

    def test_evaluates_other_text_without_writing_to_the_work_directory(
        self, finished, texts, tmp_path, monkeypatch
    ):
        tokenize, found = evaluate.tokenize_corpus, []

        def note(data, tokenizer, output):
            counts = tokenize(data, tokenizer, output)
            found.extend([output, sorted(finished[0].rglob("*"))])
            return counts

        monkeypatch.setattr(evaluate, "tokenize_corpus", note)
        before = sorted(finished[0].rglob("*"))
        (tmp_path / "bad.txt").write_bytes(b"\xff")
        results = evaluate.evaluate_workdir(
            finished[0], f"{texts},{tmp_path}/bad.txt", max_sequences=8, bad_documents="skip"
        )
        assert results["step"] == 6 and results["num_sequences"] == 8
        output, meanwhile = found
        assert meanwhile == before and not output.exists()

    @pytest.mark.parametrize("text, words", [(None, "no file matches"), ("", "has no text")])
    def test_unusable_text_is_refused(self, text, words, finished, tmp_path, refusal):
        if text is not None:
            (tmp_path / "a.txt").write_text(text)
        before = sorted(finished[0].rglob("*"))
        message = refusal(lambda: evaluate.evaluate_workdir(finished[0], data=f"{tmp_path}/*.txt"))
        # `evaluate --data` has no key for the text.
        assert words in message and "data.input" not in message
        assert sorted(finished[0].rglob("*")) == before
