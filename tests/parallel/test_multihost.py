"""Real runs in several processes on one machine, over CPU collectives."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bert_jax import tokenizers, train, workdir
from bert_jax.data.pipeline import PretrainingStream
from bert_jax.data.store import TokenStore
from bert_jax.input_setup import pipeline_spec
from bert_jax.parallel import launch
from bert_jax.training.metrics import read_metrics
from bert_jax.training.stages import resolve_stages
from tests import runs
from tests.parallel.processes import (
    LOST,
    PATIENCE_SECONDS,
    SMALL,
    STEPS,
    child_of,
    finish,
    free_address,
    run,
    start,
)
from tests.test_train import assert_same_bits, final_state, newest_checkpoint, wait_for


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Globs of forty short documents of made-up words."""
    folder = tmp_path_factory.mktemp("texts")
    rng = random.Random(3)
    words = ["".join(rng.choices("abcdeilmnorstu", k=rng.randint(2, 8))) for _ in range(400)]
    for number in range(40):
        sentences = [" ".join(rng.choices(words, k=rng.randint(1, 4))) for _ in range(40)]
        text = " ".join(sentence.capitalize() + "." for sentence in sentences)
        (folder / f"{number:02}.txt").write_text(text)
    return f"{folder}/*.txt"


@pytest.fixture(scope="module")
def two(tmp_path_factory, texts):
    """A run of two processes that nothing disturbed: its directory, outputs, bytes read."""
    folder = tmp_path_factory.mktemp("two")
    reads = [folder / f"reads{number}.json" for number in range(2)]
    ended = run(folder / "run", 2, options=lambda n: {"reads": str(reads[n])}, data__input=texts)
    return folder / "run", ended, [json.loads(file.read_text()) for file in reads]


def losses(directory):
    return [line["loss"] for line in read_metrics(directory) if "loss" in line]


def evaluations(directory):
    return [line["eval_mlm_loss"] for line in read_metrics(directory) if "eval_mlm_loss" in line]


class TestTwoProcesses:
    def test_the_losses_are_those_of_one(self, two, tmp_path):
        config = workdir.load_config(two[0])
        config.data.store = str(two[0] / "data")
        train.train(config, tmp_path)
        ours, theirs = losses(two[0]), losses(tmp_path)
        assert len(ours) == STEPS
        # As for devices in one process: sums run in another order, and Adam amplifies that.
        np.testing.assert_allclose(ours[0], theirs[0], rtol=2e-6)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
        assert len(evaluations(two[0])) == 3
        np.testing.assert_allclose(evaluations(two[0]), evaluations(tmp_path), rtol=1e-4)

    def test_only_the_first_says_anything(self, two):
        (_, out, err), (_, other_out, other_err) = two[1]
        for expected in ("on 2 x cpu", "held-out MLM loss", "checkpoint ", "what next"):
            assert expected in out, expected
        assert "Gloo" not in out
        assert (err, other_out, other_err) == ("", "", "")

    def test_only_the_first_writes(self, two):
        lines = read_metrics(two[0])
        steps = [line["step"] for line in lines if "loss" in line]
        assert steps == list(range(1, STEPS + 1))
        assert len(list((two[0] / "tensorboard").iterdir())) == 1

    def test_each_reads_the_tokens_of_its_own_rows(self, two):
        directory, _, reads = two
        config = workdir.load_config(directory)
        stage = resolve_stages(config.train)[0]
        store = TokenStore(directory / "data" / "train")
        tokenizer = tokenizers.load(directory / "tokenizer")
        expected = []
        for shards in ((0,), (1,), (0, 1)):
            stream = PretrainingStream(
                store, tokenizer, pipeline_spec(config, stage), shards=shards, num_shards=2
            )
            masks = [batch["attention_mask"] for batch in stream.batches(0, STEPS)]
            # [CLS] and two [SEP] a row are no text; a token takes two bytes.
            expected.append(sum(2 * int(mask.sum() - 3 * len(mask)) for mask in masks))
        first, second, whole = expected
        assert [read["train"] for read in reads] == [first, second]
        assert first + second == whole and first != second
        # Three evaluations over 32 sequences.
        assert all(0 < read["heldout"] < 2 * 3 * 16 * 24 for read in reads)


def test_what_stops_one_stops_all_and_the_run_goes_on(two, tmp_path):
    """Killed, killed with a damaged checkpoint left, told to stop: the bits stay the same.

    The end is run by one process with as many devices, whose sums run in the same order.
    """
    store = two[0] / "data"

    def until(condition, **overrides):
        processes = start(
            tmp_path, 2, options={"step_seconds": 0.1}, data__store=store, **overrides
        )
        wait_for(condition, processes[0])
        return processes

    # The second is killed, with the parent that watches it.
    first, second = until(lambda: newest_checkpoint(tmp_path) >= 8)
    second.kill()
    killed = time.monotonic()
    (status, _, err), _ = finish([first, second], launch.LOST_SECONDS + PATIENCE_SECONDS)
    assert time.monotonic() - killed < launch.LOST_SECONDS + PATIENCE_SECONDS
    assert status == launch.LOST_STATUS
    assert err.startswith(f"error: process 0 of 2: {LOST}") and err.count("\n") == 1
    assert "last checkpoint" in err

    # All hear of a damaged newest checkpoint from one.
    newest = newest_checkpoint(tmp_path)
    files = (tmp_path / "checkpoints" / str(newest)).rglob("*")
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    damaged = tmp_path / "damaged_checkpoints" / str(newest)

    # The first is killed, on whom all depend, but not the parent that watches it.
    first, second = until(lambda: damaged.exists() and newest_checkpoint(tmp_path) >= newest)
    os.kill(child_of(first), signal.SIGKILL)
    (first_status, _, first_err), (status, out, err) = finish(
        [first, second], launch.LOST_SECONDS + PATIENCE_SECONDS
    )
    assert first_status == 128 + signal.SIGKILL
    assert first_err.count(f"{newest} is damaged") == 1
    assert "process 0 of 2" in first_err and "SIGKILL" in first_err and "memory" in first_err
    assert (status, out) == (launch.LOST_STATUS, "")
    assert err.startswith(f"error: process 1 of 2: {LOST}") and err.count("\n") == 1

    # The second alone is told to stop.
    newest = newest_checkpoint(tmp_path)
    lines = len(losses(tmp_path))  # Perhaps of steps that were lost.
    first, second = until(lambda: len(losses(tmp_path)) >= lines + 2, checkpoint__every_steps=100)
    seen = len(losses(tmp_path))
    second.send_signal(signal.SIGTERM)
    (status, out, err), other = finish([first, second], PATIENCE_SECONDS)
    assert (status, err) == (0, "")
    assert f"going on from step {newest}" in out and "Stopped by SIGTERM" in out
    assert other == (0, "", "")
    saved = newest_checkpoint(tmp_path)
    assert seen <= saved < STEPS

    ((_, out, _),) = run(tmp_path, 1, devices=2, data__store=store)
    assert f"going on from step {saved}" in out
    assert_same_bits(final_state(tmp_path), final_state(two[0]))
    assert losses(tmp_path) == losses(two[0])


def test_what_fails_on_the_first_ends_all(tmp_path):
    first, second = run_failing(tmp_path / "run", data__input=f"{tmp_path}/nothing/*.txt")
    assert "nothing/*.txt" in first and not first.startswith("error: process")
    assert second.startswith("error: process 1 of 2: process 0 failed: ")
    assert "nothing/*.txt" in second


def test_storage_that_is_not_shared(two, tmp_path):
    first, second = run_failing(lambda n: tmp_path / str(n), data__store=two[0] / "data")
    words = f"{tmp_path}/1/corpus.json, which process 0 has written"
    assert words in second and second.startswith("error: process 1 of 2: ")
    assert first.startswith("error: process 1 failed: ") and words in first


def run_failing(directory, **overrides):
    """The one sentence of each of two processes."""
    ended = finish(start(directory, 2, **overrides), 120)
    for status, out, err in ended:
        assert (status, out) == (1, "")
        assert err.count("\n") == 1, err
    return [err for _, _, err in ended]


def test_batches_and_agreements(tmp_path):
    """Meshes whose devices are mixed, shared by processes; what one knows, all know."""
    address = free_address()
    files = [tmp_path / str(number) for number in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.parallel.hosts_worker", address, str(number), str(file)],
            cwd=runs.ROOT,
            env=runs.environment() | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, file in enumerate(files)
    ]
    for status, _, err in finish(processes):
        assert status == 0, err
    seen = [json.loads(file.read_text()) for file in files]
    for name, num_shards, shards in (
        ("straight", 4, ([0, 1], [2, 3])),
        ("mixed", 4, ([0, 2], [1, 3])),
        ("shared", 2, ([0, 1], [0, 1])),
    ):
        for number in range(2):
            expected = {"shards": shards[number], "num_shards": num_shards, "equal": True}
            assert seen[number][name] == expected, name
    first, second = seen
    assert first["from_first"] == second["from_first"] == {"I am": 0}
    assert (first["together"], second["together"]) == (0, 1)
    assert first["first fails"].startswith("OSError") and "/full/disk" in first["first fails"]
    assert second["first fails"].startswith("UserError: process 0 failed: ")
    assert "/full/disk" in second["first fails"]
    assert first["second fails"] == "UserError: process 1 failed: it is wrong"
    assert second["second fails"] == "UserError: it is wrong"
    assert first["vote"] == second["vote"] == 4
    for one in seen:
        assert one["guard"] == {
            "polls": [False, False, False, True, True],
            "noted": False,
            "name": "SIGTERM",
        }


@pytest.mark.slow
def test_a_silent_one_is_lost(two, tmp_path):
    """As when a machine or its network is gone: nothing closes the connections."""
    processes = start(
        tmp_path, 2, options={"step_seconds": 0.1, "lost_seconds": 5}, data__store=two[0] / "data"
    )
    wait_for(lambda: newest_checkpoint(tmp_path) >= 4, processes[0])
    silent = child_of(processes[1])
    os.kill(silent, signal.SIGSTOP)
    began = time.monotonic()
    ((status, _, err),) = finish(processes[:1], 5 + PATIENCE_SECONDS)
    assert 2 < time.monotonic() - began < 5 + PATIENCE_SECONDS
    assert status == launch.LOST_STATUS
    assert err.startswith(f"error: process 0 of 2: {LOST}") and err.count("\n") == 1
    processes[1].kill()
    os.kill(silent, signal.SIGKILL)
    finish(processes[1:])


@pytest.mark.slow
def test_one_is_killed_while_the_first_prepares(texts, tmp_path):
    """The first is not in a step then; it ends all the same, and preparing begins again."""
    preparing = tmp_path / "preparing"
    options = {"prepare_seconds": 60, "preparing": str(preparing), "lost_seconds": 5}
    processes = start(tmp_path / "run", 2, options=options, data__input=texts)
    wait_for(preparing.exists, processes[0])
    processes[1].kill()
    began = time.monotonic()
    (status, _, err), _ = finish(processes, 5 + PATIENCE_SECONDS)
    assert time.monotonic() - began < 5 + PATIENCE_SECONDS
    assert status == launch.LOST_STATUS
    assert err.startswith(f"error: process 0 of 2: {LOST}") and err.count("\n") == 1


@pytest.mark.slow
def test_four_devices_in_any_number_of_processes(two, tmp_path):
    store = two[0] / "data"
    straight = tmp_path / "four"
    run(straight, 4, data__store=store)

    # Stopped by a signal to the last of four, killed as two, ended as one.
    moved = tmp_path / "moved"
    processes = start(moved, 4, options={"step_seconds": 0.1}, data__store=store)
    wait_for(lambda: newest_checkpoint(moved) >= 4, processes[0])
    processes[3].send_signal(signal.SIGTERM)
    assert [status for status, _, _ in finish(processes, PATIENCE_SECONDS)] == [0] * 4
    stopped = newest_checkpoint(moved)
    processes = start(moved, 2, devices=2, options={"step_seconds": 0.1}, data__store=store)
    wait_for(lambda: newest_checkpoint(moved) > stopped, processes[0])
    processes[1].kill()
    finish(processes)
    assert newest_checkpoint(moved) < STEPS
    run(moved, 1, devices=4, data__store=store)
    assert_same_bits(final_state(moved), final_state(straight))
    assert losses(moved) == losses(straight)

    # Another number of devices, and a process by itself, whose sums run in another order.
    np.testing.assert_allclose(losses(two[0]), losses(straight), rtol=1e-4)
    alone = runs.main_command(tmp_path / "alone", **SMALL, data__store=store)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    subprocess.run(alone, cwd=runs.ROOT, env=runs.environment() | flags, check=True)
    np.testing.assert_allclose(losses(tmp_path / "alone"), losses(straight), rtol=1e-4)


@pytest.mark.slow
def test_one_of_four_is_killed(two, tmp_path):
    processes = start(tmp_path, 4, options={"step_seconds": 0.1}, data__store=two[0] / "data")
    wait_for(lambda: newest_checkpoint(tmp_path) >= 4, processes[0])
    processes[2].kill()
    ended = finish(processes, launch.LOST_SECONDS + PATIENCE_SECONDS)
    for number in (0, 1, 3):
        status, _, err = ended[number]
        assert status == launch.LOST_STATUS
        assert err.startswith(f"error: process {number} of 4: {LOST}") and err.count("\n") == 1


@pytest.mark.slow
def test_a_model_divided_over_two_processes(two, tmp_path):
    """Both need every row, and read it."""
    reads = [tmp_path / f"reads{number}.json" for number in range(2)]
    run(
        tmp_path / "run",
        2,
        options=lambda n: {"reads": str(reads[n])},
        data__store=two[0] / "data",
        sharding="tp",
        mesh__fsdp=1,
        mesh__model=2,
        max_replicated_share=0.99,
    )
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(two[0]), rtol=1e-4)
    both = [json.loads(file.read_text())["train"] for file in reads]
    assert both == [sum(read["train"] for read in two[2])] * 2


@pytest.mark.slow
def test_evaluation_by_itself(two, texts, tmp_path):
    """Of held-out documents, and of texts that the first process tokenizes for both."""
    results = json.loads((two[0] / "results.json").read_text())
    for data in ("", texts):
        address, output = free_address(), tmp_path / "results.json"
        command = [sys.executable, "-m", "bert_jax.evaluate", f"--workdir={two[0]}"]
        command += [f"--data={data}", f"--output={output}", f"--coordinator={address}"]
        processes = [
            subprocess.Popen(
                [*command, "--num_processes=2", f"--process_id={number}"],
                cwd=runs.ROOT,
                env=runs.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        first, second = finish(processes)
        assert first[0] == 0 and "masked-LM loss" in first[1], first[2]
        assert second == (0, "", "")
        if not data:
            for name, value in json.loads(output.read_text()).items():
                assert value == pytest.approx(results[name], rel=1e-5), name
    assert not list(two[0].glob("evaluate_*"))
