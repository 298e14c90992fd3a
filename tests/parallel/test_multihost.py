"""Joining, and real runs in several processes on one machine, with CPU collectives."""

import json
import os
import random
import signal
import time

import numpy as np
import pytest

from bert_jax import tokenizers
from bert_jax.batches.stream import Stream
from bert_jax.commands.pretrain import pretrain
from bert_jax.parallel import multihost
from bert_jax.pretraining.input import stream_spec
from bert_jax.store.token_store import TokenStore
from bert_jax.training import workdir
from bert_jax.training.metrics import read_metrics
from bert_jax.training.stages import resolve_stages
from tests.parallel.processes import STEPS, finish, run, start
from tests.runs import assert_same_bits, damage, final_state, newest_checkpoint, wait_for

# After a process dies, the others must end within this time.
LOST_SECONDS = 60


class TestClusters:
    """The environment variables with which Slurm and Kubernetes start several processes."""

    NAMES = "SLURM_STEP_NODELIST SLURM_NTASKS TPU_PROCESS_ADDRESSES TPU_WORKER_HOSTNAMES".split()

    @pytest.mark.parametrize(
        ("chips", "variables", "several"),
        [
            (False, {}, False),
            (False, {"SLURM_STEP_NODELIST": "a", "SLURM_NTASKS": "4"}, True),
            (False, {"SLURM_STEP_NODELIST": "a", "SLURM_NTASKS": "1"}, False),
            # A Slurm job without srun is one process.
            (False, {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, False),
            (False, {"TPU_WORKER_HOSTNAMES": "a,b"}, False),
            (True, {"TPU_WORKER_HOSTNAMES": "a"}, False),
            (True, {"TPU_WORKER_HOSTNAMES": "a,b"}, True),
            (True, {"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"}, True),
            # On a TPU VM, JAX queries the metadata server.
            (True, {}, True),
        ],
    )
    def test_environment(self, monkeypatch, chips, variables, several):
        for name in (*self.NAMES, "MEGASCALE_NUM_SLICES", "TPU_SKIP_MDS_QUERY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if chips:
            config = type(multihost.jax.config)
            monkeypatch.setattr(config, "jax_platforms", "tpu,cpu", raising=False)
        assert multihost.is_launched_by_cluster() == several


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Writes forty short documents of random words; returns their glob."""
    folder = tmp_path_factory.mktemp("texts")
    rng = random.Random(3)
    words = ["".join(rng.choices("abcdeilmnorstu", k=rng.randint(2, 8))) for _ in range(400)]
    for number in range(40):
        sentences = [" ".join(rng.choices(words, k=rng.randint(1, 4))) for _ in range(40)]
        text = " ".join(sentence.capitalize() + "." for sentence in sentences)
        (folder / f"{number:02}.txt").write_text(text)
    return f"{folder}/*.txt"


# Masked diffusion of packed rows.
DIFFUSION = {
    "objective.terms": "diffusion",
    "objective.weights": "1",
    "data.corruption": "diffusion",
    "data.rows": "fitted_documents",
    "data.max_pairs_per_row": 3,
    "train.stages[0].max_predictions_per_seq": None,
}


@pytest.fixture(
    scope="module",
    params=[{}, pytest.param(DIFFUSION, marks=pytest.mark.slow)],
    ids=["bert", "diffusion"],
)
def recipe(request):
    """The values of the config of a run that differ from those of BERT."""
    return request.param


@pytest.fixture(scope="module")
def two(tmp_path_factory, texts, recipe):
    """Returns the directory, outputs and bytes read of an uninterrupted run of two processes."""
    folder = tmp_path_factory.mktemp("two")
    reads = [folder / f"reads{number}.json" for number in range(2)]
    options = {"options": lambda number: {"reads": str(reads[number])}, "data__input": texts}
    ended = run(folder / "run", 2, **options, **recipe)
    return folder / "run", ended, [json.loads(file.read_text()) for file in reads]


@pytest.mark.parametrize(("flag", "options"), [("--config.seed=7", {}), ("", {"version": "0.0.1"})])
def test_processes_with_different_values_end(tmp_path, flag, options):
    processes = start(
        tmp_path / "run",
        2,
        options=lambda number: options if number else {},
        flags=lambda number: [flag] if flag and number else [],
    )
    sentence = "error: the processes of the run have different flags or versions of bert_jax: start"
    for status, _, err in finish(processes, 30):
        assert status == 1 and err.startswith(sentence) and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_missing_processes_end_the_others(tmp_path):
    """Process 0 waits for a third process, which nobody starts."""
    processes = start(
        tmp_path,
        2,
        options={"join_seconds": 3},
        flags=lambda number: [] if number else ["--num_processes=3"],
    )
    for status, _, err in finish(processes, 30):
        assert status == 1 and err.startswith("error: not all processes of the run joined within 3")
        assert err.count("\n") == 1


def losses(directory):
    return [line["loss"] for line in read_metrics(directory) if "loss" in line]


def evaluations(directory):
    names = "eval_mlm_loss", "eval_diffusion_loss"
    return [line[name] for line in read_metrics(directory) for name in names if name in line]


class TestTwoProcesses:
    def test_losses_match_one_process(self, two, tmp_path):
        config = workdir.load_config(two[0])
        config.data.store = str(two[0] / "data")
        pretrain(config, tmp_path)
        ours, theirs = losses(two[0]), losses(tmp_path)
        assert len(ours) == STEPS
        # Sums are computed in another order, and Adam amplifies the rounding differences.
        np.testing.assert_allclose(ours[0], theirs[0], rtol=2e-6)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
        assert len(evaluations(two[0])) == 3
        np.testing.assert_allclose(evaluations(two[0]), evaluations(tmp_path), rtol=1e-4)

    def test_only_process_zero_prints(self, two):
        (_, out, err), (_, other_out, other_err) = two[1]
        for expected in ("on 2 x cpu", "held out: masked-", "checkpoint ", "what next"):
            assert expected in out, expected
        assert (err, other_err) == ("", "")
        # Gloo, a C++ library, prints a message on every process.
        assert all("[Gloo]" in line for line in other_out.splitlines())

    def test_only_process_zero_writes(self, two):
        lines = read_metrics(two[0])
        steps = [line["step"] for line in lines if "loss" in line]
        assert steps == list(range(1, STEPS + 1))
        assert len(list((two[0] / "tensorboard").iterdir())) == 1

    @pytest.mark.parametrize("recipe", [{}], ids=["bert"], indirect=True)
    def test_each_process_reads_only_the_tokens_of_its_rows(self, two):
        directory, _, reads = two
        config = workdir.load_config(directory)
        stage = resolve_stages(config)[0]
        store = TokenStore(directory / "data" / "train")
        tokenizer = tokenizers.load(directory / "tokenizer")
        expected = []
        for shards in ((0,), (1,), (0, 1)):
            stream = Stream(
                store, tokenizer, stream_spec(config, stage), shards=shards, num_shards=2
            )
            masks = [batch["attention_mask"] for batch in stream.batches(0, STEPS)]
            # A row has three special tokens; a token takes two bytes.
            expected.append(sum(2 * int(mask.sum() - 3 * len(mask)) for mask in masks))
        first, second, whole = expected
        assert [read["train"] for read in reads] == [first, second]
        assert first + second == whole and first != second
        # Three evaluations over 32 sequences, and a part of one before the first step.
        assert all(0 < read["heldout"] < 2 * 4 * 16 * 24 for read in reads)


@pytest.mark.slow
def test_kill_and_damage_then_one_process_resumes(two, recipe, tmp_path):
    """Process 0 is killed and the newest checkpoint damaged.

    One process with the same number of devices then gives a bit-identical result.
    """
    values = recipe | {"data.store": two[0] / "data"}
    first, second = start(tmp_path, 2, options={"step_seconds": 0.1}, **values)
    wait_for(lambda: newest_checkpoint(tmp_path) >= 8, first)
    first.kill()
    (_, (status, _, err)) = finish([first, second], LOST_SECONDS)
    assert status not in (0, 1, 2) and err
    newest = newest_checkpoint(tmp_path)
    assert 8 <= newest < STEPS
    damage(tmp_path, newest)

    ((_, out, err),) = run(tmp_path, 1, devices=2, **values)
    assert err.count(f"{newest} is damaged") == err.count("\n") == 1
    assert f"continuing from step {newest - 4}" in out
    assert_same_bits(final_state(tmp_path), final_state(two[0]))
    assert losses(tmp_path) == losses(two[0])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [{}], ids=["bert"], indirect=True)
def test_unresponsive_process_ends_the_run(two, tmp_path):
    """Simulates a lost machine or network, in which case no connection is closed."""
    options = {"step_seconds": 0.1, "heartbeat_seconds": 5}
    processes = start(tmp_path, 2, options=options, data__store=two[0] / "data")
    wait_for(lambda: newest_checkpoint(tmp_path) >= 4, processes[0])
    os.kill(processes[1].pid, signal.SIGSTOP)
    began = time.monotonic()
    ((status, _, err),) = finish(processes[:1], 30)
    assert time.monotonic() - began > 2
    assert status not in (0, 1, 2) and err
    processes[1].kill()
    finish(processes[1:])
