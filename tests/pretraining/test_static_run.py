"""Whole runs on TFRecord files: export, training, kill, resume and evaluation."""

import json
import signal
import sys

import numpy as np
import pytest

from bert_jax import benchmark
from bert_jax import config as config_lib
from bert_jax.base.errors import UserError
from bert_jax.config.command_line import ConfigSource
from bert_jax.pretraining import run as pretrain
from bert_jax.pretraining import settings
from bert_jax.pretraining.input import open_run_input, stream_spec
from bert_jax.store.record_store import RecordStore
from bert_jax.training import workdir
from bert_jax.training.metrics import read_metrics
from bert_jax.training.stages import resolve_stages
from tests import runs, stores
from tests.refusals import command as refused
from tests.runs import assert_same_bits, final_state, newest_checkpoint, start, wait_for
from tests.small_run import small_run, write_documents

pytestmark = pytest.mark.usefixtures("tensorflow")
VOCAB = runs.TINY_RUN["model.vocab_size"]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Returns files with the lengths of both stages, and their vocabulary."""
    directory = tmp_path_factory.mktemp("records")
    texts = stores.write_speeches(directory / "texts", 60)
    stores.make(stores.options(texts, heldout_fraction=0.0), directory / "store", VOCAB)
    for length, predictions in ((24, 4), (48, 6)):
        command = [sys.executable, "-m", "bert_jax.export_tfrecord", f"--store={directory}/store"]
        command += [f"--output={directory}/{length}", f"--max_seq_length={length}"]
        command += [f"--max_predictions_per_seq={predictions}", "--dupe_factor=2"]
        printed = runs.succeed([*command, "--num_shards=2"])
        assert "python -m bert_jax.main" in printed
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
    return directory, runs.succeed(command(directory, records))


@pytest.mark.slow
def test_run_learns_and_holds_nothing_out(uninterrupted):
    directory, printed = uninterrupted
    assert "records of TFRecord files" in printed
    assert printed.count("nothing is held out") == 1 and "bert_jax.evaluate" in printed
    training = [line["mlm_loss"] for line in read_metrics(directory) if "loss" in line]
    assert training[-1] < training[0] - 0.5
    assert not [line for line in read_metrics(directory) if "eval_mlm_loss" in line]


@pytest.mark.slow
def test_killed_run_is_bit_identical(uninterrupted, records, tmp_path):
    process = start(command(tmp_path, records))
    wait_for(lambda: newest_checkpoint(tmp_path) > 0, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 0 < newest_checkpoint(tmp_path) < 60
    runs.succeed(command(tmp_path, records))
    assert_same_bits(final_state(tmp_path), final_state(uninterrupted[0]))


@pytest.mark.slow
def test_prepared_records_give_the_same_run(uninterrupted, records, tmp_path):
    """Records that `prepare` has converted once can be shared by runs."""
    tool = [sys.executable, "-m", "bert_jax.prepare", "--format=google_tfrecord"]
    tool += [f"--input={records}/*/*.tfrecord", f"--vocab={records}/24/vocab.txt"]
    printed = runs.succeed([*tool, f"--output={tmp_path / 'rows'}"])
    assert "rows of 24 tokens and 4 predictions" in printed
    config = workdir.load_config(uninterrupted[0])
    first = open_run_input(config, uninterrupted[0])
    config.data.store, config.data.vocab = str(tmp_path / "rows"), ""
    second = open_run_input(config, tmp_path / "run")
    for stage in resolve_stages(config):
        one, two = (c.stream(stream_spec(config, stage)) for c in (first, second))
        for ours, theirs in zip(one.batches(0, 3), two.batches(0, 3), strict=True):
            for name in ours:
                np.testing.assert_array_equal(ours[name], theirs[name])
    assert not (tmp_path / "run" / "data").exists()
    config.data.format = "auto"
    source = ConfigSource("x.py", config, frozenset({"data.format"}))
    with pytest.raises(UserError, match="is 'auto', but the token store .* 'google_tfrecord': set"):
        settings.complete(config, tmp_path / "run", source)


@pytest.mark.slow
def test_evaluates_other_text(uninterrupted, tmp_path):
    tool = [sys.executable, "-m", "bert_jax.evaluate", f"--workdir={uninterrupted[0]}"]
    finished = runs.run(tool)
    assert finished.returncode == 1 and "held out no documents" in finished.stderr
    texts = write_documents(tmp_path / "texts", 4)
    runs.succeed([*tool, f"--data={texts}", f"--output={tmp_path / 'out.json'}"])
    results = json.loads((tmp_path / "out.json").read_text())
    # The baseline uses the token counts of the records.
    assert 0 < results["unigram_mlm_loss"] < 10 and results["num_sequences"] > 0


def small_config(records, **changes):
    """Returns a config with one stage of 24 tokens."""
    config = small_run(
        f"{records}/24/*.tfrecord",
        model__vocab_size=VOCAB,
        data__format="google_tfrecord",
        data__vocab=str(records / "24" / "vocab.txt"),
        data__heldout_fraction=0.0,
    )
    stage = {"fraction": 1.0, "max_seq_length": 24, "max_predictions_per_seq": 4} | changes
    with config.unlocked():
        config.train.stages = (config_lib.stage(**stage),)
    return config


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"max_seq_length": 16}, "no record .* has 16 tokens.*records have 24"),
        ({"max_predictions_per_seq": 3}, "have 4 predictions"),
    ],
)
def test_records_that_a_stage_cannot_take(records, tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        pretrain.train(small_config(records, **changes), tmp_path)
    assert not (tmp_path / "config.json").exists(), "a refused start must not claim the directory"


@pytest.mark.parametrize("key, value", [("whole_word_masking", True), ("shuffle_sentences", 5)])
def test_keys_without_effect_are_refused(records, key, value):
    config = small_config(records)
    config.data[key] = value
    with pytest.raises(UserError, match=f"config.data.{key} .*no effect on google_tfrecord"):
        config_lib.validate(config)


def test_benchmark_reads_records(records, tmp_path):
    config = small_config(records)
    results = benchmark.benchmark_input(config, 1, 4, str(tmp_path))
    assert results["sequences_per_second"] > 0
    assert RecordStore(tmp_path / "data").num_rows > 900
    # Changed records are refused.
    metadata = tmp_path / "data" / "metadata.json"
    metadata.write_text(metadata.read_text().replace('"records": ', '"records": 1'))
    with pytest.raises(UserError, match="rows-00000.bin should have"):
        open_run_input(config, tmp_path)


def test_mistakes_in_exporting(records, tmp_path):
    store = f"--store={records}/store"
    for flags, words in (
        (["--output=out"], "--store is missing"),
        (["--store=nowhere", "--output=out"], "nowhere holds no finished token store"),
        (
            [store, f"--output={tmp_path}", "--max_seq_length=24", "--max_predictions_per_seq=22"],
            "--max_predictions_per_seq is 22; a sequence of --max_seq_length=24 has at most 21",
        ),
    ):
        assert words in refused("export_tfrecord", *flags)
    assert not [*tmp_path.iterdir()]
