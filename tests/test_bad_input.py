"""What users get wrong: each time one clear sentence, a non-zero exit and nothing lost."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from bert_jax import cli, evaluate, prepare, train, workdir
from bert_jax import config as config_lib
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import MetricsWriter, read_metrics
from bert_jax.training.trainer import Trainer
from configs import tiny
from tests import runs

TEXT = (
    "The quick brown fox jumps over the lazy dog. It was a good day for all of them. "
    "Nobody knew what the old man of the hill had seen.\n\n"
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_documents(folder, number, text=TEXT * 4):
    folder.mkdir(exist_ok=True)
    for i in range(number):
        (folder / f"{i}.txt").write_text(f"{text}Document number {i} ends here. It really does.")
    return f"{folder}/*.txt"


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """All runs here have the same shapes: only the first one compiles."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (str(tmp_path_factory.mktemp("compiled")), 0), strict=True):
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_documents(tmp_path_factory.mktemp("texts"), 12)


def small_run(data_input, **overrides):
    """The config of a run of seconds: one layer, one stage, six steps."""
    config = tiny.get_config()
    values = {
        "data.input": (data_input,),
        "data.num_processes": 1,
        "data.heldout_fraction": 0.2,
        "model.vocab_size": 200,
        "model.hidden_size": 16,
        "model.num_hidden_layers": 1,
        "model.intermediate_size": 16,
        "train.num_steps": 6,
        "train.batch_size": 4,
        "eval.batch_size": 4,
        "eval.max_sequences": 8,
        "eval.every_steps": 0,
        "log.every_steps": 1,
        "checkpoint.every_steps": 2,
    } | {key.replace("__", "."): value for key, value in overrides.items()}
    with config.unlocked():
        config.train.stages = (
            config_lib.stage(fraction=1.0, max_seq_length=16, max_predictions_per_seq=4),
        )
        config.update_from_flattened_dict(values)
    return config


@pytest.fixture
def refusal(monkeypatch, capfd):
    """Runs something as a command does, in this process; returns its one sentence."""

    def run(action) -> str:
        monkeypatch.setattr(sys, "argv", ["command"])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.run(lambda _: action() and None)
        return one_sentence(stopped.value.code, capfd.readouterr().err)

    return run


def one_sentence(status, stderr) -> str:
    assert status in (1, 2), stderr
    assert stderr.startswith("error: ") and stderr.count("\n") == 1, stderr
    assert "Traceback" not in stderr
    return stderr.removeprefix("error: ").strip()


def command(module, *arguments) -> str:
    """Runs a real process that must refuse; returns its one sentence."""
    finished = runs.run([sys.executable, "-m", f"bert_jax.{module}", *map(str, arguments)])
    return one_sentence(finished.returncode, finished.stderr)


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


def test_a_failed_start_leaves_the_directory_to_the_corrected_one(tmp_path, refusal):
    wrong = small_run(f"{tmp_path}/nothing/*.txt")
    assert "no file matches" in refusal(lambda: train.train(wrong, tmp_path / "run"))
    right = small_run(f"{tmp_path}/something/*.txt")
    assert workdir.check(tmp_path / "run", right) == []


def test_a_work_directory_that_is_a_file(texts, tmp_path, refusal):
    (tmp_path / "file").write_text("mine")
    told = refusal(lambda: train.train(small_run(texts), tmp_path / "file"))
    assert f"{tmp_path}/file is a file" in told
    assert (tmp_path / "file").read_text() == "mine"


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


class TestOthersDirectories:
    """A finished run, and what may be missing or damaged in it."""

    @pytest.fixture(scope="class")
    def finished(self, texts, tmp_path_factory):
        directory = tmp_path_factory.mktemp("finished") / "run"
        assert train.train(small_run(texts), directory)["step"] == 6
        return directory

    @pytest.fixture
    def copy(self, finished, tmp_path):
        shutil.copytree(finished, tmp_path / "run")
        return tmp_path / "run"

    def test_another_config_is_refused(self, finished, texts, refusal):
        before = (finished / "config.json").read_bytes()
        run = small_run(texts, schedule__peak_learning_rate=0.5)
        told = refusal(lambda: train.train(run, finished))
        assert "config.schedule.peak_learning_rate is 0.001, here it is 0.5" in told
        assert (finished / "config.json").read_bytes() == before

    def test_a_directory_in_use_is_refused(self, copy, texts, refusal):
        with workdir.lock(copy):
            told = refusal(lambda: train.train(small_run(texts), copy))
        assert told == f"another process is training in {copy}"
        assert train.train(small_run(texts), copy)["step"] == 6

    def test_another_corpus_is_refused(self, copy, texts, tmp_path, refusal):
        other = tmp_path / "store"
        data = small_run(write_documents(tmp_path / "other", 5)).data
        prepare.prepare(data, 200, other, show_progress=False)
        told = refusal(lambda: train.train(small_run(texts, data__store=str(other)), copy))
        assert "another corpus" in told and str(tmp_path / "other") in told

    def test_changed_text_is_refused_by_name(self, texts, copy, tmp_path, refusal):
        folder = tmp_path / "texts"
        run = small_run(write_documents(folder, 5))
        prepare.prepare(run.data, 200, tmp_path / "store", show_progress=False)
        (folder / "3.txt").write_text("Other text. It is short.")
        told = refusal(lambda: prepare.prepare(run.data, 200, tmp_path / "store"))
        assert f"{folder}/3.txt had " in told and "same data.input" in told

    @pytest.mark.parametrize("name", ["data", "tokenizer", "token_counts.npy"])
    def test_what_can_be_made_again_is(self, name, copy, finished, texts):
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert train.train(small_run(texts), copy)["step"] == 6
        for file in (finished / name).rglob("*") if path.is_dir() else ():
            if file.is_file() and file.name != "metadata.json":
                assert (copy / file.relative_to(finished)).read_bytes() == file.read_bytes()

    @pytest.mark.parametrize("name", ["config.json", "corpus.json"])
    @pytest.mark.parametrize("content", ["", "{", "[]", "\ufffd"])
    def test_damaged_json(self, name, content, copy, texts, refusal):
        (copy / name).write_text(content)
        told = refusal(lambda: train.train(small_run(texts), copy))
        assert str(copy / name) in told

    @pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff"])
    def test_damaged_results_are_made_again(self, content, copy, finished, texts):
        (copy / "results.json").write_bytes(content)
        # By hand: training would compile for seconds only to evaluate once more.
        assert train.finished_results(copy, 6, 6) is None
        assert train.finished_results(finished, 6, 6)["step"] == 6

    def test_damaged_metrics_lose_their_damaged_lines_only(self, tmp_path):
        with contextlib.closing(MetricsWriter(tmp_path, 0)) as writer:
            writer.write(1, {"loss": 2.0})
        with (tmp_path / "metrics.jsonl").open("ab") as stream:
            stream.write(b'\xff\xfe\n{"loss": 3}\n[]\n3\n\n{"step": 2, "loss": 1.0}\n{"step": 3')
        MetricsWriter(tmp_path, 2).close()
        assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]

    def test_evaluating_what_is_no_run(self, copy, tmp_path, refusal):
        (tmp_path / "empty").mkdir()
        for directory in (tmp_path / "empty", tmp_path / "nothing"):
            told = refusal(lambda directory=directory: evaluate.evaluate_workdir(directory))
            assert "is not a work directory" in told and str(directory) in told
        shutil.rmtree(copy / "checkpoints")
        told = refusal(lambda: evaluate.evaluate_workdir(copy))
        assert "has no checkpoint yet" in told
        assert not (copy / "checkpoints").exists()

    def test_damaged_token_counts(self, copy, refusal):
        (copy / "token_counts.npy").write_bytes(b"")
        assert "token_counts.npy is damaged" in refusal(lambda: evaluate.evaluate_workdir(copy))

    def test_read_only(self, finished, texts, tmp_path, mounts, refusal):
        mounts("--bind", finished, tmp_path / "ro")
        mounts.remount(tmp_path / "ro", "bind,ro")
        told = refusal(lambda: train.train(small_run(texts), tmp_path / "ro"))
        assert f"{tmp_path}/ro/" in told and "Read-only file system" in told
        told = refusal(lambda: prepare.prepare(small_run(texts).data, 200, tmp_path / "ro" / "s"))
        assert "Read-only file system" in told
        # Reading is all that evaluation does.
        assert evaluate.evaluate_workdir(tmp_path / "ro")["step"] == 6


class Mounts:
    def __init__(self):
        self.mounted = []

    def __call__(self, *arguments):
        arguments[-1].mkdir(exist_ok=True)
        try:
            subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a small or read-only disk needs the right to mount one: {error}")
        self.mounted.append(arguments[-1])
        return arguments[-1]

    def disk(self, folder, size):
        return self("-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)

    def remount(self, folder, options):
        subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


@pytest.fixture
def mounts():
    mounts = Mounts()
    yield mounts
    for folder in mounts.mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class TestFullDisk:
    def test_prepare(self, texts, tmp_path, mounts):
        disk = mounts.disk(tmp_path / "disk", "24k")
        flags = f"--input={texts}", f"--output={disk}/store", "--vocab_size=200"
        told = command("prepare", *flags, "--num_processes=1")
        assert f"{disk}/store" in told and "No space left on device" in told
        assert not (disk / "store" / "metadata.json").exists()
        mounts.remount(disk, "size=1m")
        finished = runs.run([sys.executable, "-m", "bert_jax.prepare", *flags])
        assert finished.returncode == 0, finished.stderr

    def test_metrics(self, tmp_path, mounts, refusal):
        disk = mounts.disk(tmp_path / "disk", "64k")
        writer = MetricsWriter(disk, 0)
        writer.write(1, {"loss": 1.0})
        written = []

        def fill():
            for step in itertools.count(2):
                written.append(step)
                writer.write(step, {"loss": 1.0 / step, "note": 1e-300})

        told = refusal(fill)
        assert str(disk) in told and "No space left on device" in told
        steps = [line["step"] for line in read_metrics(disk)]
        assert steps in (list(range(1, written[-1])), list(range(1, written[-1] + 1)))
        with contextlib.suppress(OSError):
            writer.close()
        mounts.remount(disk, "size=1m")
        with contextlib.closing(MetricsWriter(disk, 5)) as writer:
            writer.write(6, {"loss": 0.5})
        assert [line["step"] for line in read_metrics(disk)] == [1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize("foreseen", [True, False])
    def test_checkpoints(self, foreseen, texts, tmp_path, mounts, monkeypatch, refusal):
        """The run stops at a checkpoint that finds no room, and goes on from the one before."""
        if not foreseen:  # a quota, or another program's file in that very moment
            monkeypatch.setattr(Checkpointer, "_check_space", lambda *_: None)
        disk = mounts.disk(tmp_path / "disk", "700k")
        run = small_run(texts, checkpoint__every_steps=1, checkpoint__keep=100)
        told = refusal(lambda: train.train(run, disk / "run"))
        assert "a checkpoint could not be written" in told and "No space left on device" in told
        checkpoints = Checkpointer(disk / "run" / "checkpoints", read_only=True)
        steps = checkpoints.steps()
        assert steps and steps == list(range(1, steps[-1] + 1)) and steps[-1] < 6
        assert f"the last good one is of step {steps[-1]};" in told
        state, _ = checkpoints.restore_newest(Trainer.from_config(run).abstract_state())
        checkpoints.close()
        assert int(state.step) == steps[-1]
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
        if foreseen:
            mounts.remount(disk, "size=8m")
            assert train.train(run, disk / "run")["step"] == 6
            lines = [line["step"] for line in read_metrics(disk / "run") if "loss" in line]
            assert lines == [1, 2, 3, 4, 5, 6]
