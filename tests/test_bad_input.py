"""Mistakes in flags and text give one clear sentence and a non-zero exit, and lose no data."""

import json
import os
import sys

import jax
import pytest

from bert_jax import config as config_lib
from bert_jax import evaluation, pretrain
from tests import runs
from tests.refusals import command, in_process
from tests.small_run import TEXT, compiled_once, small_run, write_documents  # noqa: F401

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture
def refusal(monkeypatch, capfd):
    return in_process(monkeypatch, capfd)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--config.data.imput=a"], ["data.imput", "data.input"]),
        (["--config.train.stages[0].fraction=0.5"], ["train.stages", "0.6", "not to 1"]),
        (["--config.train.num_steps=many"], ["config.train.num_steps=many"]),
        (["--config.dtype=float16"], ["config.dtype is 'float16'", "bfloat16"]),
    ],
)
def test_flags_of_a_run(flags, words, tmp_path):
    directory = tmp_path / "run"
    message = command("main", "--config=configs/tiny.py", f"--workdir={directory}", *flags)
    assert all(word in message for word in words), message
    assert not directory.exists()


def test_no_config_at_all(tmp_path):
    assert "--config is missing" in command("main", f"--workdir={tmp_path}")
    assert "--workdir is missing" in command("evaluate")


def test_flags_for_pretrained_models_are_refused_for_finetuned_ones(tmp_path):
    (tmp_path / "config.json").write_text('{"task": "table"}')
    message = command("evaluate", f"--workdir={tmp_path}", "--data=x.tsv", "--max_sequences=9")
    assert "--max_sequences is for pre-trained models, not for" in message


class TestCorpus:
    """`prepare` refuses a corpus that cannot be trained on."""

    def message(self, tmp_path, name, content, number=1):
        for i in range(number):
            (tmp_path / f"{i}{name}").write_bytes(content)
        store = tmp_path / "store"
        message = command("prepare", f"--input={tmp_path}/*{name}", f"--output={store}")
        assert not (store / "metadata.json").exists()
        return message

    def test_missing(self, tmp_path):
        message = command("prepare", f"--input={tmp_path}/*.txt", f"--output={tmp_path}/store")
        assert f"'{tmp_path}/*.txt'" in message and "no file matches" in message

    def test_one_document(self, tmp_path):
        message = self.message(tmp_path, ".txt", TEXT.encode())
        assert "single document (read as data.format=documents: most lines stand" in message
        assert "or divide the one with data.max_document_characters=" in message

    def test_broken_json(self, tmp_path):
        message = self.message(tmp_path, ".jsonl", b'{"text": "a b c"}\n{"text": \n')
        assert "0.jsonl:2: not a JSON object" in message


@pytest.mark.parametrize(
    "content, words",
    [
        (None, ["data.vocab", "cannot read", "No such file"]),
        ([*SPECIAL[:4], "a"], ["has no [MASK]"]),
        ([*SPECIAL, "a", "b"], ["model.vocab_size is 200", "has 7 entries"]),
    ],
)
def test_vocabularies(content, words, texts, tmp_path, refusal):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_text("".join(f"{line}\n" for line in content))
    run = small_run(texts, data__vocab=str(path))
    message = refusal(lambda: pretrain.train(run, tmp_path / "run"))
    assert str(path) in message and all(word in message for word in words), message


def test_batch_and_mesh_must_fit_the_devices(texts, tmp_path, refusal):
    run = small_run(texts, train__gradient_accumulation_steps=3)
    message = refusal(lambda: pretrain.train(run, tmp_path / "run"))
    assert "config.train.batch_size is 4" in message and "the nearest that does is 3" in message
    devices = jax.device_count()
    run = small_run(texts, mesh__data=devices + 1)
    message = refusal(lambda: pretrain.train(run, tmp_path / "run"))
    assert f"data={devices + 1}" in message and f"{devices} available device(s)" in message
    assert not (tmp_path / "run").exists()


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
        flags |= {"data.heldout_fraction": 0.2, "data.num_processes": 1, "data.input": data_input}
        del flags["train.stages"], flags["train.extra"]
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
        message = refusal(lambda: evaluation.evaluate_workdir(finished[0]))
        assert "held out no documents" in message and "--data=GLOB" in message

    def test_evaluates_other_text(self, finished, texts, tmp_path):
        (tmp_path / "bad.txt").write_bytes(b"\xff")
        results = evaluation.evaluate_workdir(
            finished[0], f"{texts},{tmp_path}/bad.txt", max_sequences=8, bad_documents="skip"
        )
        assert results["step"] == 6 and results["num_sequences"] == 8

    @pytest.mark.parametrize("text, words", [(None, "no file matches"), (TEXT, "single document")])
    def test_unusable_text_is_refused(self, text, words, finished, tmp_path, refusal):
        if text is not None:
            (tmp_path / "a.txt").write_text(text)
        before = sorted(finished[0].rglob("*"))
        message = refusal(
            lambda: evaluation.evaluate_workdir(finished[0], data=f"{tmp_path}/*.txt")
        )
        # `evaluate --data` has no key for the text.
        assert words in message and "data.input" not in message
        assert sorted(finished[0].rglob("*")) == before
