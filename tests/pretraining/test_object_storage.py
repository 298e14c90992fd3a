"""A whole run in a bucket: it is prepared, killed, resumed, evaluated and exported there."""

import numpy as np
import pytest
from etils import epath

from bert_jax import config as config_lib
from bert_jax.commands.evaluate import evaluate_workdir
from bert_jax.commands.pretrain import pretrain
from bert_jax.convert import convert
from bert_jax.interop import formats
from bert_jax.store.preparation import prepare
from bert_jax.training import workdir
from bert_jax.training.metrics import read_metrics
from tests import runs
from tests.runs import assert_same_bits, final_state, start, wait_for

pytestmark = pytest.mark.slow
VOCAB_SIZE = 300
SHORT = {
    "data__heldout_fraction": 0.3,
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
    """Returns the objects of gs://runs; the processes of this module use its server."""
    environment, buckets = gcs_server
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield buckets.setdefault("runs", {})


@pytest.fixture(scope="module")
def texts(objects, tmp_path_factory):
    """Returns globs of the same texts on disk and in the bucket."""
    directory = tmp_path_factory.mktemp("texts")
    local = runs.write_speeches(directory, 12)
    for file in directory.iterdir():
        epath.Path(f"gs://runs/texts/{file.name}").write_bytes(file.read_bytes())
    return local, "gs://runs/texts/*.txt"


@pytest.fixture(scope="module")
def stores(texts, tmp_path_factory):
    """Returns the token stores of these texts on disk and in the bucket."""
    where = str(tmp_path_factory.mktemp("store") / "store"), "gs://runs/store"
    for inputs, store in zip(texts, where, strict=True):
        data = config_lib.default_config().data
        data.input, data.num_processes, data.heldout_fraction = (inputs,), 1, 0.3
        prepare(data, VOCAB_SIZE, store)
    return where


@pytest.fixture(scope="module")
def on_disk(stores, tmp_path_factory):
    directory = tmp_path_factory.mktemp("on_disk")
    pretrain(runs.tiny_run(**SHORT, data__store=stores[0]), directory)
    return directory


@pytest.fixture(scope="module")
def in_bucket(stores, objects):
    """Returns a run in the bucket that was killed between two checkpoints and resumed."""
    directory = epath.Path("gs://runs/run")
    process = start(runs.main_command(directory, **SHORT, data__store=stores[1]))
    marker = "run/checkpoints/6/commit_success.txt"
    wait_for(lambda: marker in objects, process)
    process.kill()
    process.communicate()
    assert workdir.newest_checkpoint(directory) < 16, "the run was killed too late"
    lines = [line["step"] for line in read_metrics(directory)]
    pretrain(runs.tiny_run(**SHORT, data__store=stores[1]), directory)
    return directory, lines


def test_result_is_bit_identical_to_a_run_on_disk(on_disk, in_bucket):
    assert_same_bits(final_state(in_bucket[0]), final_state(on_disk))


def test_no_line_of_metrics_is_lost(on_disk, in_bucket):
    directory, lines_at_the_kill = in_bucket
    assert set(lines_at_the_kill) >= {2, 4, 6}, "lines up to the last checkpoint must exist"
    rates = ("sequences_per_second", "tokens_per_second", "flops_per_second", "mfu")
    times = (*rates, "compile_seconds")
    ours, theirs = (
        [{k: v for k, v in line.items() if k not in times} for line in read_metrics(where)]
        for where in (directory, on_disk)
    )
    assert ours == theirs


def test_run_in_a_bucket_can_be_evaluated(on_disk, in_bucket, texts, objects):
    ours = evaluate_workdir(in_bucket[0], data=texts[1], max_sequences=16)
    assert ours == evaluate_workdir(on_disk, data=texts[0], max_sequences=16)
    assert not [name for name in objects if name.startswith("run/evaluate_")], (
        "scratch files must be removed"
    )


def test_export_to_the_bucket(in_bucket, objects):
    assert convert(str(in_bucket[0]), "gs://runs/huggingface", "huggingface") == []
    assert "huggingface/model.safetensors" in objects
    ours, theirs = formats.read(epath.Path("gs://runs/huggingface")), formats.read(in_bucket[0])
    assert all(np.array_equal(ours.weights[k], theirs.weights[k]) for k in theirs.weights)
