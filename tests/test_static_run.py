"""Whole runs on TFRecord files: exported, trained on, killed, gone on with, evaluated."""

import json
import signal
import sys

import numpy as np
import pytest

from bert_jax import benchmark, input_setup, prepare, train, workdir
from bert_jax import config as config_lib
from bert_jax.data.static_rows import StaticRows
from bert_jax.errors import UserError
from bert_jax.training.metrics import read_metrics
from bert_jax.training.stages import resolve_stages
from tests import runs
from tests.runs import assert_same_bits, final_state, newest_checkpoint, start, wait_for
from tests.small_run import small_run, write_documents

VOCAB = runs.TINY_RUN["model.vocab_size"]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Files of both stages' lengths, and their vocabulary."""
    directory = tmp_path_factory.mktemp("records")
    data = config_lib.default_config().data
    data.num_processes = 1
    prepare.prepare(data, VOCAB, directory / "store", show_progress=False)
    for length, predictions in ((24, 4), (48, 6)):
        command = [sys.executable, "-m", "bert_jax.export_tfrecord", f"--store={directory}/store"]
        command += [f"--output={directory}/{length}", f"--max_seq_length={length}"]
        command += [f"--max_predictions_per_seq={predictions}", "--dupe_factor=2"]
        finished = runs.run([*command, "--num_shards=2", "--split=heldout"])
        assert finished.returncode == 0, finished.stderr
        assert "python -m bert_jax.main" in finished.stdout
    return directory


def command(directory, records, **changes):
    keys = {
        "data__format": "google_tfrecord",
        "data__input": f"{records}/*/*.tfrecord",
        "data__vocab": records / "24" / "vocab.txt",
        "data__heldout_fraction": 0.0,
    }
    return runs.main_command(directory, **keys | changes)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, records):
    directory = tmp_path_factory.mktemp("uninterrupted")
    finished = runs.run(command(directory, records))
    assert finished.returncode == 0, finished.stderr
    return directory, finished


def test_it_says_what_it_reads_and_learns(uninterrupted):
    directory, finished = uninterrupted
    assert "records of TFRecord files" in finished.stdout
    assert finished.stdout.count("nothing is held out") == 1
    assert "bert_jax.evaluate" in finished.stdout
    training = [line["mlm_loss"] for line in read_metrics(directory) if "loss" in line]
    assert training[-1] < training[0] - 0.5
    assert not [line for line in read_metrics(directory) if "eval_mlm_loss" in line]


@pytest.mark.slow
def test_killed_it_ends_with_the_same_bits(uninterrupted, records, tmp_path):
    process = start(command(tmp_path, records))
    wait_for(lambda: newest_checkpoint(tmp_path) > 0, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 0 < newest_checkpoint(tmp_path) < 60
    finished = runs.run(command(tmp_path, records))
    assert finished.returncode == 0, finished.stderr
    assert_same_bits(final_state(tmp_path), final_state(uninterrupted[0]))


def test_a_store_of_rows_gives_the_same_run(uninterrupted, records, tmp_path):
    """Rows written once by `prepare` are shared by runs, and the files needed no more."""
    tool = [sys.executable, "-m", "bert_jax.prepare", "--format=google_tfrecord"]
    tool += [f"--input={records}/*/*.tfrecord", f"--vocab={records}/24/vocab.txt"]
    finished = runs.run([*tool, f"--output={tmp_path / 'rows'}"])
    assert finished.returncode == 0, finished.stderr
    assert "rows of 24 tokens and 4 predictions" in finished.stdout
    config = workdir.load_config(uninterrupted[0])
    first = input_setup.open_run_input(config, uninterrupted[0])
    config.data.store = str(tmp_path / "rows")
    config.data.vocab = ""
    second = input_setup.open_run_input(config, tmp_path / "run")
    for stage in resolve_stages(config.train):
        one, two = (c.stream(input_setup.stream_spec(config, stage)) for c in (first, second))
        for ours, theirs in zip(one.batches(0, 3), two.batches(0, 3), strict=True):
            for name in ours:
                np.testing.assert_array_equal(ours[name], theirs[name])
    assert not (tmp_path / "run" / "data").exists()


def test_evaluates_other_text(uninterrupted, tmp_path):
    directory, _ = uninterrupted
    tool = [sys.executable, "-m", "bert_jax.evaluate", f"--workdir={directory}"]
    finished = runs.run(tool)
    assert finished.returncode == 1
    assert "held no documents out; give --data" in finished.stderr
    texts = write_documents(tmp_path / "texts", 4)
    finished = runs.run([*tool, f"--data={texts}", f"--output={tmp_path / 'out.json'}"])
    assert finished.returncode == 0, finished.stderr
    results = json.loads((tmp_path / "out.json").read_text())
    # The baseline uses the token counts of the records.
    assert 0 < results["unigram_mlm_loss"] < 10 and results["num_sequences"] > 0


def test_changed_files_are_refused(uninterrupted, records, tmp_path):
    config = workdir.load_config(uninterrupted[0])
    config.data.input = (f"{records}/24/*.tfrecord",)
    # The config alone is refused, before the rows are read.
    with pytest.raises(UserError, match="config.data.input is"):
        train.train(config, uninterrupted[0])


class TestRefusals:
    def config(self, records, **changes):
        """One stage of 24 tokens."""
        config = small_run(f"{records}/24/*.tfrecord", **changes)
        with config.unlocked():
            config.model.vocab_size = VOCAB
            config.data.format = "google_tfrecord"
            config.data.vocab = str(records / "24" / "vocab.txt")
            config.data.heldout_fraction = 0.0
            config.train.stages = (
                config_lib.stage(fraction=1.0, max_seq_length=24, max_predictions_per_seq=4),
            )
        return config

    def test_no_rows_of_a_stages_length(self, records, tmp_path):
        config = self.config(records)
        config.train.stages[0].max_seq_length = 16
        with pytest.raises(UserError, match="no record .* has 16 tokens.*records of 24"):
            train.train(config, tmp_path)
        assert not (tmp_path / "config.json").exists(), "the directory is free for another start"

    def test_more_predictions_than_the_stage_takes(self, records, tmp_path):
        config = self.config(records)
        config.train.stages[0].max_predictions_per_seq = 3
        with pytest.raises(UserError, match="have 4 predictions"):
            train.train(config, tmp_path)

    def test_a_model_of_another_vocabulary(self, records, tmp_path):
        config = self.config(records)
        config.model.vocab_size = 601
        with pytest.raises(UserError, match="vocab_size is 601, but .* has 600 entries"):
            train.train(config, tmp_path)

    def test_a_token_store_is_no_store_of_rows(self, records, tmp_path):
        config = self.config(records)
        config.data.store = str(records / "store")
        with pytest.raises(UserError, match="rows.json is missing.*format=google_tfrecord"):
            train.train(config, tmp_path)

    @pytest.mark.parametrize("key", ["whole_word_masking", "masked_lm_prob", "shuffle_sentences"])
    def test_keys_without_effect(self, records, key):
        config = self.config(records)
        config.data[key] = {"whole_word_masking": True, "masked_lm_prob": 0.2}.get(key, 5)
        with pytest.raises(UserError, match=f"config.data.{key} .*no effect on google_tfrecord"):
            config_lib.validate(config)

    def test_no_vocabulary(self, records):
        config = self.config(records)
        config.data.vocab = ""
        with pytest.raises(UserError, match="config.data.vocab is empty"):
            config_lib.validate(config)

    def test_the_benchmark_reads_them(self, records, tmp_path):
        results = benchmark.benchmark_input(self.config(records), 1, 4, str(tmp_path / "run"))
        assert results["sequences_per_second"] > 0
        assert StaticRows(tmp_path / "run" / "data").num_rows > 1000

    def test_rows_changed_since_the_checkpoint(self, records, tmp_path):
        config = self.config(records)
        train.train(config, tmp_path / "run")
        assert input_setup.open_run_input(config, tmp_path / "run").heldout is None
        rows = tmp_path / "run" / "data" / "rows.json"
        rows.write_text(rows.read_text().replace('"records": ', '"records": 1'))
        with pytest.raises(UserError, match="began with another corpus"):
            input_setup.open_run_input(config, tmp_path / "run")


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--output=out"], "--store is missing"),
        (["--store=nowhere"], "--output is missing"),
        (["--store=nowhere", "--output=out"], "nowhere holds no finished token store"),
        (["--max_seq_length=4"], "--max_seq_length"),
        (["--dupe_factor=0"], "--dupe_factor"),
        (["--num_shards=0"], "--num_shards"),
    ],
)
def test_mistakes_in_exporting(flags, words):
    finished = runs.run([sys.executable, "-m", "bert_jax.export_tfrecord", *flags])
    assert finished.returncode in (1, 2)
    assert words in finished.stderr and "Traceback" not in finished.stderr
    assert len(finished.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--masked_lm_prob=7"], "--masked_lm_prob is 7.0; it must be at least 0 and below 1"),
        (["--short_seq_prob=nan"], "--short_seq_prob is nan; it must be at least 0 and below 1"),
        (["--max_seq_length=1000000"], "--max_seq_length is 1000000; it must be at most 65535"),
        (
            ["--max_seq_length=24", "--max_predictions_per_seq=22"],
            "--max_predictions_per_seq is 22; a sequence of --max_seq_length=24 has at most 21",
        ),
    ],
)
def test_values_out_of_range_in_exporting(records, tmp_path, flags, words):
    command = [sys.executable, "-m", "bert_jax.export_tfrecord", f"--store={records}/store"]
    finished = runs.run([*command, f"--output={tmp_path}/out", *flags])
    assert finished.returncode == 1
    assert finished.stderr.startswith(f"error: {words}")
    assert len(finished.stderr.strip().splitlines()) == 1
    assert not [*tmp_path.iterdir()]
