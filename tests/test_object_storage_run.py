"""A whole run in a bucket: prepared there, killed, gone on with, the same to the last bit."""

import functools
import json
import os
import sys
import time

import numpy as np
import pytest
from etils import epath

from bert_jax import config as config_lib
from bert_jax import evaluation, workdir
from bert_jax.data.corpus import built_in_files
from bert_jax.data.prepare_store import prepare
from bert_jax.interop import formats
from bert_jax.training.metrics import read_metrics
from tests import runs
from tests.parallel.processes import free_address
from tests.test_train import assert_same_bits, final_state, start, wait_for

VOCAB_SIZE = 300
SHORT = {
    "model__vocab_size": VOCAB_SIZE,
    "train__num_steps": 16,
    "eval__every_steps": 0,
    "train__stages[0]__fraction": 1.0,
    "train__stages[1]__fraction": 0.0,
    "log__every_steps": 2,
    "checkpoint__every_steps": 2,
}


@pytest.fixture(scope="module")
def objects(gcs_server):
    """The objects of the bucket gs://runs, to which this module's processes are led."""
    environment, buckets = gcs_server
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield buckets.setdefault("runs", {})


@pytest.fixture(scope="module")
def texts(objects, tmp_path_factory):
    """The same texts on disk and in the bucket, as globs."""
    directory = tmp_path_factory.mktemp("texts")
    for file in built_in_files()[:12]:
        content = file.read_bytes()[:20_000]
        (directory / file.name).write_bytes(content)
        epath.Path(f"gs://runs/texts/{file.name}").write_bytes(content)
    return f"{directory}/*.txt", "gs://runs/texts/*.txt"


@pytest.fixture(scope="module")
def stores(texts, tmp_path_factory):
    """The token store of these texts on disk, and in the bucket."""
    where = str(tmp_path_factory.mktemp("store") / "store"), "gs://runs/store"
    for inputs, store in zip(texts, where, strict=True):
        data = config_lib.default_config().data
        data.input, data.num_processes, data.heldout_fraction = (inputs,), 1, 0.3
        prepare(data, VOCAB_SIZE, store, show_progress=False)
    return where


@pytest.fixture(scope="module")
def on_disk(stores, tmp_path_factory):
    directory = tmp_path_factory.mktemp("on_disk")
    done = runs.run(runs.main_command(directory, **SHORT, data__store=stores[0]))
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def in_bucket(stores, objects):
    """A run in the bucket that was killed between two checkpoints and started again."""
    directory = epath.Path("gs://runs/run")
    command = runs.main_command(directory, **SHORT, data__store=stores[1])
    process = start(command)
    marker = "run/checkpoints/6/commit_success.txt"
    wait_for(lambda: marker in objects, process)
    process.kill()
    process.communicate()
    assert workdir.newest_checkpoint(directory) < 16, "it was killed too late"
    lines = [line["step"] for line in read_metrics(directory)]
    done = runs.run(command)
    assert done.returncode == 0, done.stderr
    return directory, done, lines


def test_it_ends_with_the_bits_of_the_run_on_disk(on_disk, in_bucket):
    assert "continuing from step" in in_bucket[1].stdout
    assert_same_bits(final_state(in_bucket[0]), final_state(on_disk))


def test_no_line_of_metrics_is_lost(on_disk, in_bucket):
    directory, _, lines_at_the_kill = in_bucket
    assert set(lines_at_the_kill) >= {2, 4, 6}, "those up to the checkpoint that was there"
    times = ("sequences_per_second", "tokens_per_second", "flops_per_second", "mfu")
    ours, theirs = (
        [{k: v for k, v in line.items() if k not in times} for line in read_metrics(where)]
        for where in (directory, on_disk)
    )
    assert ours == theirs


def test_it_leaves_the_promised_files(on_disk, in_bucket, objects):
    there = {name.removeprefix("run/") for name in objects if name.startswith("run/")}
    for name in ("config.json", "corpus.json", "results.json", "curves.png", "token_counts.npy"):
        assert name in there
        assert (on_disk / name).exists()
    assert not [name for name in there if "partial" in name]
    assert len([name for name in there if name.startswith("tensorboard/")]) == 2, "one a start"
    results = [
        json.loads((where / "results.json").read_text()) for where in (in_bucket[0], on_disk)
    ]
    assert results[0]["mlm_loss"] == results[1]["mlm_loss"]


@pytest.mark.slow
def test_a_third_start_says_that_it_is_finished(in_bucket, stores, objects):
    before = dict(objects)
    done = runs.run(runs.main_command(in_bucket[0], **SHORT, data__store=stores[1]))
    assert done.returncode == 0 and "This run is finished" in done.stdout, done.stderr
    changed = {name for name, stored in objects.items() if before[name] != stored}
    assert changed <= {"run/config.json"}


def test_it_is_evaluated_where_it_is(on_disk, in_bucket, texts, objects):
    ours = evaluation.evaluate_workdir(in_bucket[0], data=texts[1], max_sequences=16)
    assert ours == evaluation.evaluate_workdir(on_disk, data=texts[0], max_sequences=16)
    assert not [name for name in objects if name.startswith("run/evaluate_")], (
        "scratch files are gone"
    )


def test_its_weights_are_read_where_they_are(on_disk, in_bucket):
    ours, theirs = formats.read(in_bucket[0]), formats.read(on_disk)
    assert ours.weights.keys() == theirs.weights.keys()
    assert all(np.array_equal(ours.weights[k], theirs.weights[k]) for k in ours.weights)
    assert ours.tokenizer.fingerprint == theirs.tokenizer.fingerprint


@pytest.mark.slow
class TestCommands:
    """The same by the commands themselves, each in a process of its own."""

    def test_another_run_goes_on_from_it(self, on_disk, in_bucket, stores, tmp_path):
        ends = {}
        for name, source, store in (("disk", on_disk, 0), ("bucket", in_bucket[0], 1)):
            where = tmp_path / name if name == "disk" else epath.Path("gs://runs/resumed")
            command = runs.main_command(
                where,
                **SHORT | {"schedule__peak_learning_rate": 1e-3, "train__num_steps": 18},
                data__store=stores[store],
                resume_from=source,
            )
            done = runs.run(command)
            assert done.returncode == 0, done.stderr
            ends[name] = final_state(where)
        assert_same_bits(ends["bucket"], ends["disk"])

    def test_a_run_of_its_own_store_and_weights(self, in_bucket, texts):
        """The store is prepared inside the work directory, the weights come from the other."""
        command = runs.main_command(
            "gs://runs/from_weights",
            **SHORT | {"train__num_steps": 4},
            data__input=texts[1],
            data__vocab=f"{in_bucket[0]}/tokenizer/vocab.txt",
            init_from=in_bucket[0],
        )
        done = runs.run(command)
        assert done.returncode == 0, done.stderr
        assert "starting with the weights of gs://runs/run" in done.stdout
        assert (epath.Path("gs://runs/from_weights") / "data" / "metadata.json").exists()

    def test_convert_and_evaluate(self, in_bucket, objects):
        module = [sys.executable, "-m"]
        for source, kind in (
            ("run", "huggingface"),
            ("huggingface", "google"),
            ("google", "bert_jax"),
        ):
            done = runs.run(
                [*module, "bert_jax.convert", f"--input=gs://runs/{source}", f"--to={kind}"]
                + [f"--output=gs://runs/{kind}"]
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout == f"{kind} directory written to gs://runs/{kind}\n"
        done = runs.run(
            [*module, "bert_jax.evaluate", "--workdir=gs://runs/bert_jax"]
            + ["--data=gs://runs/texts/*.txt", "--max_sequences=8", "--output=gs://runs/r.json"]
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(epath.Path("gs://runs/r.json").read_text())["num_sequences"] == 8

    def test_records_are_exported_there_and_trained_on_from_there(self, stores, objects):
        done = runs.run(
            [sys.executable, "-m", "bert_jax.export_tfrecord", f"--store={stores[1]}"]
            + ["--output=gs://runs/records", "--dupe_factor=1", "--num_shards=2"]
            + ["--max_seq_length=24", "--max_predictions_per_seq=4"]
        )
        assert done.returncode == 0, done.stderr
        assert len([name for name in objects if name.startswith("records/")]) == 4
        values = {**SHORT, "train__num_steps": 4, "data__heldout_fraction": 0}
        command = runs.main_command(
            "gs://runs/on_records",
            **values,
            data__input="gs://runs/records/*.tfrecord",
            data__format="google_tfrecord",
            data__vocab="gs://runs/records/vocab.txt",
        )
        done = runs.run(command)
        assert done.returncode == 0, done.stderr
        assert "records of TFRecord files to train on" in done.stdout

    def test_two_hosts(self, on_disk, stores):
        """Both read the store there and save there; the losses are those of one host."""
        directory = epath.Path("gs://runs/two")
        command = runs.main_command(directory, **SHORT, data__store=stores[1])
        command += [f"--coordinator={free_address()}", "--num_processes=2"]
        hosts = [start([*command, f"--process_id={i}"]) for i in range(2)]
        printed = [host.communicate(timeout=300)[0] for host in hosts]
        assert [host.returncode for host in hosts] == [0, 0], printed
        ours, theirs = (
            [line["loss"] for line in read_metrics(where) if "loss" in line]
            for where in (directory, on_disk)
        )
        assert len(ours) == 8
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)

    def test_it_is_killed_again_and_again(self, on_disk, stores, objects):
        """A run continues after a SIGKILL at any moment."""
        directory = epath.Path("gs://runs/killed")
        command = runs.main_command(directory, **SHORT, data__store=stores[1])
        rng = np.random.default_rng(int(os.environ.get("BERT_JAX_SEED", 0)))

        def written():
            return len([name for name in objects if name.startswith("killed/checkpoints/")])

        for _ in range(4):
            process = start(command)
            wait_for(functools.partial(lambda seen: written() != seen, written()), process)
            time.sleep(rng.uniform(0, 0.4))
            process.kill()
            process.communicate()
        done = runs.run(command)
        assert done.returncode == 0, done.stderr
        assert_same_bits(final_state(directory), final_state(on_disk))
