"""What users get wrong in flags and text: one clear sentence, a non-zero exit, nothing lost."""

import json
import os
import sys

import jax
import pytest

from bert_jax import config as config_lib
from bert_jax import evaluate, train
from tests import runs
from tests.refusals import command, in_process
from tests.small_run import TEXT, compiled_once, small_run, write_documents  # noqa: F401

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_documents(tmp_path_factory.mktemp("texts"), 12)


@pytest.fixture
def refusal(monkeypatch, capfd):
    return in_process(monkeypatch, capfd)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--config.data.imput=a"], ["data.imput", "data.input"]),
        (["--config.model.num_attention_heads=3"], ["num_attention_heads is 3", "128"]),
        (["--config.train.stages[0].fraction=0.5"], ["train.stages", "0.6", "must be 1"]),
        (["--config.train.stages[0].max_seq_length=513"], ["513", "512", "max_position"]),
        (["--config.train.stages[0].max_predictions_per_seq=65"], ["65", "at most 29"]),
        (["--config.train.num_steps=many"], ["config.train.num_steps=many"]),
        (["--config=nowhere.py"], ["no config file 'nowhere.py'"]),
        (["--workdir="], ["--workdir is missing"]),
        (["--config.dtype=float16"], ["config.dtype is 'float16'", "bfloat16"]),
        (["--config.mesh.data=0"], ["config.mesh.data is 0"]),
        (["file.txt"], ["unexpected argument 'file.txt'"]),
    ],
)
def test_flags_of_a_run(flags, words, tmp_path):
    directory = tmp_path / "run"
    told = command("main", "--config=configs/tiny.py", f"--workdir={directory}", *flags)
    assert all(word in told for word in words), told
    assert not directory.exists()


def test_no_config_at_all(tmp_path):
    assert "--config is missing" in command("main", f"--workdir={tmp_path}")
    assert "--workdir is missing" in command("evaluate")


class TestCorpus:
    """Corpora that cannot be trained on, through the command that reads them."""

    def told(self, tmp_path, name, content, number=1):
        for i in range(number):
            (tmp_path / f"{i}{name}").write_bytes(content)
        store = tmp_path / "store"
        told = command("prepare", f"--input={tmp_path}/*{name}", f"--output={store}")
        assert not (store / "metadata.json").exists()
        return told

    def test_missing(self, tmp_path):
        told = command("prepare", f"--input={tmp_path}/*.txt", f"--output={tmp_path}/store")
        assert f"'{tmp_path}/*.txt'" in told and "no file matches" in told

    def test_empty(self, tmp_path):
        assert "0.txt:1: the document has no text" in self.told(tmp_path, ".txt", b"")

    def test_one_document(self, tmp_path):
        told = self.told(tmp_path, ".txt", TEXT.encode())
        assert "single document" in told and "two or more" in told

    def test_invalid_utf8(self, tmp_path):
        told = self.told(tmp_path, ".txt", b"Fine.\n\nFine.\nNot \xff fine.\n", number=2)
        assert "0.txt:4: not valid UTF-8" in told

    def test_broken_json(self, tmp_path):
        told = self.told(tmp_path, ".jsonl", b'{"text": "a b c"}\n{"text": \n')
        assert "0.jsonl:2: not a JSON object" in told

    def test_sources_one_of_which_is_missing(self, texts, tmp_path):
        told = command("prepare", f"--input={texts},/no/b.jsonl.gz", f"--output={tmp_path}/store")
        assert "'/no/b.jsonl.gz'" in told


@pytest.mark.parametrize(
    "content, words",
    [
        (None, ["data.vocab", "cannot read", "No such file"]),
        ([], ["is empty"]),
        ([*SPECIAL[:4], "a"], ["has no [MASK]"]),
        ([*SPECIAL, "a", "b"], ["model.vocab_size is 200", "has 7 entries"]),
    ],
)
def test_vocabularies(content, words, texts, tmp_path, refusal):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_text("".join(f"{line}\n" for line in content))
    run = small_run(texts, data__vocab=str(path))
    told = refusal(lambda: train.train(run, tmp_path / "run"))
    assert str(path) in told and all(word in told for word in words), told


def test_batch_and_mesh_must_fit_the_devices(texts, tmp_path, refusal):
    run = small_run(texts, train__gradient_accumulation_steps=3)
    told = refusal(lambda: train.train(run, tmp_path / "run"))
    assert "config.train.batch_size is 4" in told and "the nearest that does is 3" in told
    devices = jax.device_count()
    run = small_run(texts, mesh__data=devices + 1)
    told = refusal(lambda: train.train(run, tmp_path / "run"))
    assert f"data={devices + 1}" in told and f"{devices} device(s)" in told
    assert not (tmp_path / "run").exists()


class TestFewAndShortDocuments:
    """The smallest legal corpus: three documents, one of a single sentence."""

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
        del flags["train.stages"]
        flags |= {"train.stages[0].fraction": 1.0, "train.stages[1].fraction": 0.0}
        command += [f"--config.{key}={value}" for key, value in flags.items()]
        # A relative path, with a blank and an umlaut in it.
        return directory, runs.run([*command, f"--workdir={os.path.relpath(directory, runs.ROOT)}"])

    def test_trains_and_says_that_nothing_was_held_out(self, finished):
        directory, process = finished
        assert process.returncode == 0, process.stderr
        assert "no document was held out" in process.stdout
        assert json.loads((directory / "results.json").read_text())["step"] == 6

    def test_evaluation_needs_text(self, finished, refusal):
        told = refusal(lambda: evaluate.evaluate_workdir(finished[0]))
        assert "held no documents out" in told and "--data=GLOB" in told

    def test_evaluates_other_text(self, finished, texts):
        results = evaluate.evaluate_workdir(finished[0], data=texts, max_sequences=8)
        assert results["step"] == 6 and results["num_sequences"] == 8

    @pytest.mark.parametrize(
        "text, words", [(None, "no file matches"), (TEXT, "single document"), ("", "no text")]
    )
    def test_other_text_that_is_none(self, text, words, finished, tmp_path, refusal):
        if text is not None:
            (tmp_path / "a.txt").write_text(text)
        before = sorted(finished[0].rglob("*"))
        told = refusal(lambda: evaluate.evaluate_workdir(finished[0], data=f"{tmp_path}/*.txt"))
        assert words in told
        assert sorted(finished[0].rglob("*")) == before
